-- Pauses the queue: no worker claims a job until it is resumed.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call
-- Returns  1
-- Events   `paused`
-- Keeps    no list is ever renamed onto another that holds jobs
-- include: base gate

local answer = remembered()
if answer then
  return answer[1]
end
call("HSET", P .. "meta", "paused", 1)
settle(P, true)
call("DEL", P .. "marker")
call("XADD", P .. "events", "*", "event", "paused")
remember({ 1 })
return 1
