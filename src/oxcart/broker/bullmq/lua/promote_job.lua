-- Promotes one delayed job now.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 id
-- Returns  1, or -1 no such job (its place is dropped), -3 not delayed
-- Events   `waiting`
-- include: base gate insert

local answer = remembered()
if answer then
  return answer[1]
end
local id = ARGV[3]
if call("ZREM", P .. "delayed", id) == 0 then
  return -3
end
if call("EXISTS", P .. id) == 0 then
  return -1
end
local job = call("HMGET", P .. id, "priority", "ox:history", "atm", "delay", "attemptsMade")
insert_waiting(P, read_gate(P), id, tonumber(job[1]) or 0)
call("XADD", P .. "events", "*", "event", "waiting", "jobId", id, "prev", "delayed")
call("HSET", P .. id, "delay", 0, "ox:ready", server_ms())
if job[2] and not is_held_back(P .. id, job[2], job[4]) then
  local from = attempts_made(job[3], job[5]) > 0 and "retrying" or "delayed"
  call("HSET", P .. id, "ox:history", noted(job[2], server_ms(), from, "scheduled", "", "an operator lets it run now"))
end
remember({ 1 })
return 1
