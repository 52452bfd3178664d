-- Adds an application event to a type's stream.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 type, 4 about how many events to keep or "" for the type's own number,
--          5 name, then fields and values
-- Returns  the event's id
-- Events   the event of this name
-- include: base

local kept = remembered()
if kept then
  return kept[1]
end
local most = ARGV[4] ~= "" and ARGV[4] or is_read(ARGV[3]) or "10000"
local id = call("XADD", P .. "ox:events:" .. ARGV[3], "MAXLEN", "~", most, "*", "event", ARGV[5], unpack(ARGV, 6))
return remember({ id })[1]
