-- Stores a signal for a job, and wakes the job if it waits for it.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 id, 4 the signal, 5 its data, 6 most bytes of signals that wait for a job
-- Returns  1, or 2 the job was woken, or 0 too many bytes wait, -1 no such job, -3 it has ended
-- Events   `waiting`
-- Keeps    signals of one name are received in the order in which they were sent
-- include: base gate insert steps

local answer = remembered()
if answer then
  return answer[1]
end
local id, name = ARGV[3], ARGV[4]
local key = P .. id
if call("EXISTS", key) == 0 then
  return -1
end
local job = call("HMGET", key, "finishedOn", "ox:waits", "priority", "ox:history", "atm", "attemptsMade")
if job[1] then
  return -3
end
if not put_signal(key, name, ARGV[5], tonumber(ARGV[6])) then
  return 0
end
local woken = job[2] == name and call("ZREM", P .. "delayed", id) == 1
if woken then
  insert_waiting(P, read_gate(P), id, tonumber(job[3]) or 0)
  call("XADD", P .. "events", "*", "event", "waiting", "jobId", id, "prev", "delayed")
  call("HSET", key, "delay", 0, "ox:ready", server_ms())
  if job[4] then
    local from = attempts_made(job[5], job[6]) > 0 and "retrying" or "delayed"
    call("HSET", key, "ox:history", noted(job[4], server_ms(), from, "scheduled", "", "its signal arrived"))
  end
end
local code = woken and 2 or 1
remember({ code })
return code
