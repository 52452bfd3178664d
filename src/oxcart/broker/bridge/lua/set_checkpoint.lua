-- Stores the checkpoint of a running job, for the worker that has its lease.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 id, 4 worker id, 5 the checkpoint
-- Returns  1, -1 no such job, -2 there is no lease, -6 another worker has it
-- include: base leased

asked_of_slot("SETRANGE", NEVER, 0, "")
local fault = lease_fault(ARGV[3], ARGV[4])
if fault then
  return fault
end
call("HSET", P .. "ox:job:" .. ARGV[3], "ox:checkpoint", ARGV[5])
return 1
