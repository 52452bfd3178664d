-- Stores the record of a step of a running job.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 id, 4 token, 5 the step's name, 6 the record
-- Returns  1, or -1 no such job, -2 no lease, -6 lease of another worker
-- Keeps    only the worker with the lease can store one; storing the same again is harmless
-- include: base leased steps

remembered()
local key = P .. ARGV[3]
local fault = lease_fault(key, ARGV[4])
if fault then
  return fault
end
keep_step(key, ARGV[5], ARGV[6])
return 1
