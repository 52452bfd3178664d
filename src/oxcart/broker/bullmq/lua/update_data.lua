-- Replaces a job's payload.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "" (safe to repeat as it is), 3 id, 4 data as JSON
-- Returns  1, or -1 no such job
-- include: base

remembered()
if call("EXISTS", P .. ARGV[3]) == 0 then
  return -1
end
call("HSET", P .. ARGV[3], "data", ARGV[4])
return 1
