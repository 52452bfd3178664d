-- Registers a lane that a peer has created.
--
-- KEYS[1]  meta of the base queue
-- ARGV     1 "", 2 "", 3 the lane
-- Returns  1 if it was new, else 0
-- include: base lanes

remembered()
if call("ZSCORE", P .. "ox:lanes", ARGV[3]) then
  return 0
end
enter_lane(P, ARGV[3])
return 1
