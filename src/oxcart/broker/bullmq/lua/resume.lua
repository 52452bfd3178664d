-- Resumes a paused queue.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call
-- Returns  1
-- Events   `resumed`
-- Keeps    jobs of both lists stay: a peer may have filled the other one meanwhile. What is too long for
--          one call is merged by the tick.
-- include: base gate insert

local answer = remembered()
if answer then
  return answer[1]
end
call("HDEL", P .. "meta", "paused")
settle(P, false)
if call("EXISTS", P .. "wait", P .. "prioritized") > 0 then
  call("ZADD", P .. "marker", 0, "0")
else
  wake_later(P)
end
call("XADD", P .. "events", "*", "event", "resumed")
remember({ 1 })
return 1
