-- Adds an application event to the queue's stream.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 about how many events to keep or "" for the queue's own number,
--          4 name, then fields and values
-- Returns  the event's id
-- Events   the given one
-- include: base

local answer = remembered()
if answer then
  return answer[1]
end
local most = ARGV[3] ~= "" and ARGV[3] or max_events(P)
local id = call("XADD", P .. "events", "MAXLEN", "~", most, "*", "event", ARGV[4], unpack(ARGV, 5))
remember({ id })
return id
