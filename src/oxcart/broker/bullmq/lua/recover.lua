-- One step of the stalled check: active jobs without a lease go back to the front of the ready list.
--
-- A cycle looks at every id that was active at the last cycle and has not renewed its lease since, and
-- then notes which are active now, for the next cycle. Long sets are worked off in steps of a bounded
-- size; a cycle over few jobs is one step.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 phase: "start", "check" or "note", 4 now, 5 most stalls allowed,
--          6 ms between cycles, 7 step size, 8 cursor ("note" only)
-- Returns  { next phase ("" when the cycle is over, "busy" when another worker made one within the
--          interval), next cursor (for "busy" the ms until the next cycle), recovered ids... }
-- Events   per recovered job `waiting` and `stalled`
-- Keeps    a job stalled more often than allowed is marked with `defa`; the worker that takes it next
--          fails it. One that belongs to a repeating schedule is never failed for this.
-- include: base gate insert

remembered()
local phase, step = ARGV[3], tonumber(ARGV[7])
local stalled_key, active_key = P .. "stalled", P .. "active"

if phase == "start" then
  if not call("SET", P .. "stalled-check", ARGV[4], "PX", ARGV[6], "NX") then
    local left = call("PTTL", P .. "stalled-check")
    if left >= 0 then
      return { "busy", left }
    end
    call("SET", P .. "stalled-check", ARGV[4], "PX", ARGV[6]) -- a guard that never ends guards nothing
  end
  trim_events()
  phase = "check"
end

local answer = { "", 0 }

-- Taking an id out of a long list means to search it, so a step takes out the fewer the longer the list is:
-- about 2 ms of searching.
local searches = math.max(20, math.floor(300000 / (call("LLEN", active_key) + 1)))

-- The id that has left `active` and is not yet elsewhere: what fails in between puts it back.
local between

local function recover(id)
  local key = P .. id
  if string.sub(id, 1, 2) == "0:" then
    call("LREM", active_key, 1, id)
    return
  end
  if call("EXISTS", key .. ":lock") == 1 then
    return
  end
  searches = searches - 1
  if call("LREM", active_key, -1, id) == 0 then
    return
  end
  between = id
  local opts = peek(key, "opts")
  if not opts then
    between = nil
    return -- the job is gone: its id was all that was left
  end
  local stalls = redis.pcall("HINCRBY", key, "stc", 1)
  if type(stalls) ~= "number" then -- no number: counted from here
    call("HSET", key, "stc", 1)
    stalls = 1
  end
  local fine, decoded = pcall(cjson.decode, opts)
  local repeats = fine and type(decoded) == "table" and decoded["repeat"]
  if stalls > tonumber(ARGV[5]) and not repeats then
    call("HSET", key, "defa", "job stalled more than allowable limit")
  end
  insert_ready(P, read_gate(P), id, true)
  between = nil
  call("XADD", P .. "events", "*", "event", "waiting", "jobId", id, "prev", "active")
  call("XADD", P .. "events", "*", "event", "stalled", "jobId", id)
  answer[#answer + 1] = id
end

if phase == "check" then
  local suspects
  if call("SCARD", stalled_key) <= step then
    suspects = call("SMEMBERS", stalled_key)
    call("DEL", stalled_key)
  else
    suspects = call("SPOP", stalled_key, step)
    answer[1] = "check"
  end
  local locks = {}
  for i, id in ipairs(suspects) do
    locks[i] = P .. id .. ":lock"
  end
  local holders = #locks > 0 and call("MGET", unpack(locks)) or {}
  for i, id in ipairs(suspects) do
    if searches == 0 then
      call("SADD", stalled_key, unpack(suspects, i))
      answer[1] = "check"
      break
    end
    if not holders[i] then
      if not pcall(recover, id) and between then
        put_back(P, between)
      end
      between = nil
    end
  end
  if answer[1] == "check" then
    return answer
  end
end

local from = tonumber(ARGV[8])
local active = call("LRANGE", active_key, from, from + 2 * step - 1)
if #active > 0 then
  call("SADD", stalled_key, unpack(active))
  if #active == 2 * step then
    answer[1], answer[2] = "note", from + 2 * step
  end
end
return answer
