-- Stores the record of a step of a running job, for the worker that has its lease.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 id, 4 worker id, 5 the step's name, 6 the record
-- Returns  1, -1 no such job, -2 there is no lease, -6 another worker has it
-- Keeps    storing the same again is harmless
-- include: base leased steps

remembered()
local fault = lease_fault(ARGV[3], ARGV[4])
if fault then
  return fault
end
keep_step(P .. "ox:job:" .. ARGV[3], ARGV[5], ARGV[6])
return 1
