-- Lists, replays or purges dead letters: one step.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 the action: "list", "replay" or "purge"
--          4 how many failed jobs to look at, or more while none is selected, 5 how many to skip, which earlier steps left
--          6 the filter as JSON (parts/filter.lua), 7 latest end in ms, 8 how many may be selected
--          9 "1" to reset their attempts, 10 "1" to begin with the newest
--          then ids, to look at these instead
-- Returns  { how many were left in place, 1 while there may be more, how many were changed, selected ids... }
-- Events   `waiting` per replayed job, `removed` per purged one
-- Keeps    a replayed child is a dependency of its parent again; purging a child releases a parent that waited for it
-- include: base gate insert removal failing steps retrying filter dead timing

local answer = remembered()
if answer then
  return answer
end
local doing, step, left = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local filter, most = read_filter(ARGV[6], "finishedOn"), tonumber(ARGV[8])

local function next_ids(at)
  if #ARGV > 10 then
    return { unpack(ARGV, 11) }
  elseif ARGV[10] == "1" then
    return call("ZREVRANGEBYSCORE", P .. "failed", ARGV[7], "-inf", "LIMIT", at, step)
  end
  return call("ZRANGEBYSCORE", P .. "failed", "-inf", ARGV[7], "LIMIT", at, step)
end

local gate = doing == "replay" and read_gate(P)
local acts = {}

function acts.list()
  return false
end

function acts.replay(id)
  return retry_one(gate, id, "failed", false, ARGV[9] == "1") == 1
end

function acts.purge(id)
  local key = P .. id
  if not peek(key, "ox:untold") then
    detach_from_living_parent(key)
  end
  drop_deduplication(P, key, id)
  call("ZREM", P .. "failed", id)
  delete_data(key)
  call("XADD", P .. "events", "MAXLEN", "~", max_events(P), "*", "event", "removed", "jobId", id, "prev", "failed")
  return true
end

local chosen, stayed, done = {}, 0, 0
local ids, passed = nil, 0
repeat
  passed = stayed
  ids = next_ids(left + stayed)
  for _, id in ipairs(ids) do
    if #chosen == most then
      break
    end
    local key, fine, gone = P .. id, true, false
    if is_dead(key, filter.permanent) and is_chosen(filter, key) and call("ZSCORE", P .. "failed", id) then
      chosen[#chosen + 1] = id
      fine, gone = pcall(acts[doing], id) -- a job whose parent is in another slot stays, and does not stop the others
    end
    if fine and gone then
      done = done + 1
    else
      stayed = stayed + 1
    end
  end
until #ARGV > 10 or not passes(#chosen, #ids, step)
local more = #ids == step or stayed - passed + done < #ids
return remember({ stayed, more and 1 or 0, done, unpack(chosen) })
