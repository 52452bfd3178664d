-- Removes a schedule; jobs that it made stay.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 id
-- Returns  1, or 0 if there was none
-- include: base

local kept = remembered()
if kept then
  return kept[1]
end
local id = ARGV[3]
local gone = call("ZREM", P .. "jobs:cron", id)
if gone == 1 then
  call("DEL", P .. "jobs:data:" .. id, P .. "jobs:status:" .. id, P .. "ox:schedule:" .. id,
    P .. "ox:job:" .. id)
end
return remember({ gone })[1]
