-- Lets a delayed job run now.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 id, 4 type, 5 its facts
-- Returns  1, -1 no such job, -3 not delayed
-- Events   `waiting`
-- include: base lanes

local kept = remembered()
if kept then
  return kept[1]
end
local id = ARGV[3]
if call("EXISTS", P .. "jobs:data:" .. id) == 0 then
  return -1
elseif call("ZREM", P .. "jobs:delayed", id) == 0 then
  return -3
end
call("HSET", P .. "ox:facts", id, ARGV[5])
make_ready(id, cmsgpack.unpack(ARGV[5]), false)
tell(ARGV[4], "waiting", id, "prev", "delayed")
return remember({ 1 })[1]
