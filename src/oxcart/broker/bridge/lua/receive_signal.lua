-- Gives a running job the oldest signal of a name, or records that it waits for one, or that it was too late.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 id, 4 worker id, 5 the name of the wait, 6 the signal, then headers of its record:
--          7 it begins to wait, 8 the signal arrived, 9 it is too late, or ""
-- Returns  { 1, record }, or { -1 no such job, -2 there is no lease, -6 another worker has it }
-- Keeps    a wait that is over stays as it is, so a repeated call returns the same record
-- include: base leased steps

remembered()
local fault = lease_fault(ARGV[3], ARGV[4])
if fault then
  return { fault }
end
return { 1, receive_signal(P .. "ox:job:" .. ARGV[3], unpack(ARGV, 5, 9)) }
