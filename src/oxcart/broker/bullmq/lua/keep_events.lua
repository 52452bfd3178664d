-- Sets how many events the queue keeps; a new queue gets its retention too.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 how many
-- Returns  1
-- Keeps    a pipeline that needs more has its number restored by the next script (parts/base.lua)
-- include: base

remembered()
max_events(P)
call("HSET", KEYS[1], "opts.maxLenEvents", ARGV[3])
return 1
