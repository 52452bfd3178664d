-- Stores a signal for a job, and wakes the job if it waits for it.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 id, 4 type, 5 the signal, 6 its data,
--          7 most bytes of signals that wait for a job
-- Returns  1, or 2 the job was woken, or 0 too many bytes wait, -1 no such job, -3 it has ended
-- Events   `waiting`
-- Keeps    signals of one name are received in the order in which they were sent
-- include: base lanes steps

local answer = remembered()
if answer then
  return answer[1]
end
local id, name = ARGV[3], ARGV[5]
local key, status = P .. "ox:job:" .. id, call("GET", P .. "jobs:status:" .. id)
if call("EXISTS", P .. "jobs:data:" .. id) == 0 then
  return -1
elseif status == "dead" or status == "failed" or status == "completed" then
  return -3
end
if not put_signal(key, name, ARGV[6], tonumber(ARGV[7])) then
  return 0
end
local woken = call("HGET", key, "ox:waits") == name and call("ZREM", P .. "jobs:delayed", id) == 1
if woken then
  make_ready(id, facts_of(id), false)
  note_ready(id, server_ms())
  emit(ARGV[4], "waiting", id, "prev", "delayed")
end
local code = woken and 2 or 1
remember({ code })
return code
