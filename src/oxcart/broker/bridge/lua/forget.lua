-- Takes jobs out of the side index that are in the list no more: other clients have taken them.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, then the ids
-- Returns  how many were there
-- Keeps    nothing is lost by it: an id that is in the list after all is found by the next pass
-- include: base lanes

asked_of_slot("SETRANGE", NEVER, 0, "")
local gone = 0
for at = 3, #ARGV do
  local id = ARGV[at]
  if call("SISMEMBER", P .. "ox:listed", id) == 1 then
    gone = gone + 1
  end
  unlist_job(id, facts_of(id))
  call("HDEL", P .. "ox:facts", id)
end
return gone
