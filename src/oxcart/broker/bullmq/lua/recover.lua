-- One step of the stalled check: active jobs without a lease return to the front of the ready list.
--
-- A cycle checks every id that was active at the last cycle and has not renewed its lease since. Then it notes the
-- active jobs for the next cycle. A cycle over few jobs is one step. With many active jobs it takes steps of a bounded
-- time: it walks the list from its old end, where lost jobs are found without a search. Then it checks the suspects
-- that it did not find there.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 phase: "start", "walk", "check" or "note", 4 now or "" (time.lua), 5 most stalls allowed,
--          6 ms between cycles, 7 step size, 8 cursor ("walk" and "note"), 9 ms without a sign of life after which
--          the server counts as having been away, "" to leave that out, 10 ms that workers need then to renew
-- Returns  { next phase ("" at the end of the cycle, "busy" if another worker made one within the
--          interval), next cursor (for "busy" the ms until the next cycle; for "" the same if it comes before the
--          interval ends), recovered ids... }
-- Events   per recovered job `waiting` and `stalled`
-- Keeps    a job stalled more often than allowed is marked with `defa`; the worker that claims it next
--          fails it. A run of a schedule is never failed for this. A job whose worker was asked to cancel it is marked
--          as well. A stall does not count if the job was lost before and other jobs ran in its worker
--          (isolate.lua). After an outage a cycle only notes the active jobs, and the next cycle comes when every healthy
--          worker has had the time to renew.
-- include: base gate insert history outage isolation
-- include when needed: insert buckets groups limiting

remembered()
local phase, step = ARGV[3], tonumber(ARGV[7])
local stalled_key, active_key = P .. "stalled", P .. "active"

if phase == "start" and ARGV[9] ~= "" and must_wait(P, ARGV[9], ARGV[10]) then
  call("PERSIST", stalled_key)
  call("SET", P .. "stalled-check", time_of(ARGV[4]), "PX", ARGV[10])
  phase = "note"
end

if phase == "start" then
  local guard, now, interval = P .. "stalled-check", time_of(ARGV[4]), tonumber(ARGV[6])
  if not call("SET", guard, now, "PX", interval, "NX") then
    local left, set_at = call("PTTL", guard), tonumber(call("GET", guard))
    -- After the server's clock was set back, a guard lasts longer by that step: it was set in the future, or it lasts
    -- longer than the interval of any worker. A guard without expiry does not count either.
    local longest = math.max(interval, grace_of(P)) -- a check after an outage waits
    local is_past = left < 0 or (left > longest and ((set_at or 0) > tonumber(now) or left > 10 * longest))
    if not is_past then
      return { "busy", left }
    end
    call("SET", guard, now, "PX", interval)
  end
  call("DEL", P .. "ox:away")
  trim_events()
  phase = call("LLEN", active_key) < step and "check" or "walk"
end

local answer = { "", 0 }

-- The budget of a step, in list entries that it may search: about 0.7 ms in all. Taking an id out of a list means a
-- search. Recovering a job costs as much as searching 450 entries, and checking whether one is lost as much as 15.
local budget = 10000
local BRING_BACK, LOOK = 450, 15

-- The id that has left `active` and is not yet elsewhere: a failure in between puts it back.
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
  if call("LREM", active_key, -1, id) == 0 then
    return
  end
  between = id
  local known = redis.pcall("HMGET", key, "opts", "ox:history", "ox:cancel", "ox:beside", "ats")
  local opts = known[1]
  if not opts then
    between = nil
    return -- the job is gone: its id was all that was left
  end
  local stalls = 0
  if not excuse(key, known[4], known[5]) then
    stalls = redis.pcall("HINCRBY", key, "stc", 1)
    if type(stalls) ~= "number" then -- no number: the count starts again
      call("HSET", key, "stc", 1)
      stalls = 1
    end
  end
  local fine, decoded = pcall(cjson.decode, opts)
  local repeats = fine and type(decoded) == "table" and decoded["repeat"]
  if stalls > tonumber(ARGV[5]) and not repeats then
    call("HSET", key, "defa", "job stalled more than allowable limit")
  end
  if known[3] then -- its worker was asked to end it and is lost: the worker that claims it next ends it
    call("HSET", key, "defa", known[3])
  end
  call("HSET", key, "ox:ready", time_of(ARGV[4]))
  if known[2] then
    note_end(key, known[2], "stalled", "scheduled", "the lease was lost", time_of(ARGV[4]),
      "the worker was lost", "system")
  end
  local gate = read_gate(P)
  insert_ready(P, gate, id, true)
  between = nil
  if gate.limits then
    seldom().give_up_lost_places(gate, id, key)
  end
  call("XADD", P .. "events", "*", "event", "waiting", "jobId", id, "prev", "active")
  call("XADD", P .. "events", "*", "event", "stalled", "jobId", id)
  answer[#answer + 1] = id
end

-- The suspects without a lease.
local function without_lease(suspects)
  local locks, lost = {}, {}
  for i, id in ipairs(suspects) do
    locks[i] = P .. id .. ":lock"
  end
  local holders = #locks > 0 and call("MGET", unpack(locks)) or {}
  for i, id in ipairs(suspects) do
    lost[id] = not holders[i]
  end
  return lost
end

local function try_to_recover(id)
  if not pcall(recover, id) and between then
    put_back(P, between)
  end
  between = nil
end

-- Ids that a walk checks together.
local STRIDE = 50

if phase == "walk" then
  local behind = tonumber(ARGV[8]) -- this many stay where they are, nearer to the end
  local over = false
  while budget > 0 and not over do
    local ids = call("LRANGE", active_key, -(behind + STRIDE), -(behind + 1))
    over = #ids < STRIDE
    budget = budget - STRIDE * LOOK
    local suspects, seen = {}, {}
    if #ids > 0 then
      local suspected = call("SMISMEMBER", stalled_key, unpack(ids))
      for i = #ids, 1, -1 do
        if suspected[i] == 1 then
          suspects[#suspects + 1] = ids[i]
        end
      end
    end
    local lost = without_lease(suspects)
    for i = #ids, 1, -1 do
      local id = ids[i]
      if lost[id] then
        if budget <= 0 then
          over = false
          break
        end
        budget = budget - behind - BRING_BACK
        try_to_recover(id)
      else
        behind = behind + 1
      end
      if lost[id] ~= nil then
        seen[#seen + 1] = id
      end
    end
    if #seen > 0 then
      call("SREM", stalled_key, unpack(seen))
    end
  end
  answer[1] = over and "check" or "walk"
  answer[2] = over and 0 or behind
  return answer
end

if phase == "check" then
  local length = call("LLEN", active_key)
  local suspects
  if call("SCARD", stalled_key) <= step then
    suspects = call("SMEMBERS", stalled_key)
    call("DEL", stalled_key)
  else
    suspects = call("SPOP", stalled_key, step)
    answer[1] = "check"
  end
  local lost = without_lease(suspects)
  for i, id in ipairs(suspects) do
    if budget <= 0 then
      call("SADD", stalled_key, unpack(suspects, i))
      answer[1] = "check"
      break
    end
    if lost[id] then
      budget = budget - length - BRING_BACK
      try_to_recover(id)
    end
  end
  if answer[1] == "check" then
    return answer
  end
end

local from = tonumber(ARGV[8])
local many = math.floor(step / 2)
local active = call("LRANGE", active_key, from, from + many - 1)
if #active > 0 then
  call("SADD", stalled_key, unpack(active))
  if #active == many then
    answer[1], answer[2] = "note", from + many
    return answer
  end
end
if ARGV[9] ~= "" then
  if call("EXISTS", P .. "ox:away") == 1 then
    answer[2] = math.max(1, call("PTTL", P .. "stalled-check"))
  else
    call("PEXPIRE", stalled_key, ARGV[9])
  end
end
return answer
