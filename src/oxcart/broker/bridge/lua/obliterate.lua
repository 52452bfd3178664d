-- Removes the remaining keys of a job type without jobs and schedules, its pause included.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 type
-- Returns  how many keys there were
-- include: base

asked_of_slot("SETRANGE", NEVER, 0, "")
local job_type = ARGV[3]
call("SREM", P .. "queues:paused", job_type)
call("SREM", P .. "ox:types", job_type)
call("HDEL", P .. "ox:wrong", job_type)
return call("DEL", P .. "ratelimit:concurrent:" .. job_type, P .. "ratelimit:minute:" .. job_type,
  P .. "ox:lanes:" .. job_type, P .. "ox:active:" .. job_type, P .. "ox:hold:" .. job_type,
  P .. "ox:marker:" .. job_type, P .. "ox:events:" .. job_type, P .. "ox:watcher:" .. job_type,
  P .. "ox:ended:completed:" .. job_type, P .. "ox:ended:failed:" .. job_type,
  P .. "ox:ended:cancelled:" .. job_type)
