-- Stores the checkpoint of a running job.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 id, 4 token, 5 the checkpoint
-- Returns  1, or -1 no such job, -2 no lease, -6 lease of another worker
-- Keeps    only the worker with the lease can store one; storing the same again is harmless
-- include: base leased

remembered()
local key = P .. ARGV[3]
local fault = lease_fault(key, ARGV[4])
if fault then
  return fault
end
call("HSET", key, "ox:checkpoint", ARGV[5])
return 1
