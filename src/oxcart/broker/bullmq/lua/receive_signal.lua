-- Gives a running job the oldest signal of a name, or records that it waits for one, or that it was too late.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 id, 4 token, 5 the name of the wait, 6 the signal, then headers of its record:
--          7 it begins to wait, 8 the signal arrived, 9 it is too late, or ""
-- Returns  { 1, record }, or { -1 no such job, -2 no lease, -6 lease of another worker }
-- Keeps    a wait that is over stays as it is, so a repeated call returns the same record
-- include: base leased steps

remembered()
local key = P .. ARGV[3]
local fault = lease_fault(key, ARGV[4])
if fault then
  return { fault }
end
return { 1, receive_signal(key, unpack(ARGV, 5, 9)) }
