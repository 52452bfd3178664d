-- Stores the checkpoint of a running job.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 id, 4 token, 5 the checkpoint
-- Returns  1, or -1 no such job, -2 no lease, -6 lease of another worker
-- Keeps    only the worker with the lease can store one; storing the same again is harmless
-- include: base

remembered()
local key = P .. ARGV[3]
if call("EXISTS", key) == 0 then
  return -1
end
local holder = call("GET", key .. ":lock")
if holder ~= ARGV[4] then
  return holder and -6 or -2
end
call("HSET", key, "ox:checkpoint", ARGV[5])
return 1
