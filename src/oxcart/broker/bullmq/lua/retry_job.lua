-- Lets a finished job run again.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 id, 4 state it is in ("failed" or "completed"),
--          5 "L" for last-in-first-out, 6 "1" to count its attempts from the beginning
-- Returns  1, or -1 no such job, -3 not in that state
-- Events   `waiting`
-- Keeps    a child that runs again is a dependency of its parent again
-- include: base gate insert

local answer = remembered()
if answer then
  return answer[1]
end
local id, state = ARGV[3], ARGV[4]
local key = P .. id
if call("EXISTS", key) == 0 then
  return -1
end
local parent_key = call("HGET", key, "parentKey")
local has_parent = parent_key and call("EXISTS", parent_key) == 1 -- in another slot: refused before any write
if call("ZREM", P .. state, id) == 0 then
  return -3
end
call("HDEL", key, "finishedOn", "processedOn", state == "failed" and "failedReason" or "returnvalue", "ox:category")
if ARGV[6] == "1" then
  call("HDEL", key, "atm", "ats", "stc")
end
insert_ready(P, read_gate(P), id, ARGV[5] == "L")
if has_parent then
  local was
  if state == "failed" then
    was = call("ZREM", parent_key .. ":unsuccessful", key) == 1 or call("HDEL", parent_key .. ":failed", key) == 1
  else
    was = call("HDEL", parent_key .. ":processed", key) == 1
  end
  if was then
    call("SADD", parent_key .. ":dependencies", key)
  end
end
call("XADD", P .. "events", "MAXLEN", "~", max_events(P), "*", "event", "waiting", "jobId", id, "prev", state)
remember({ 1 })
return 1
