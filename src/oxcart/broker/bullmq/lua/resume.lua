-- Resumes a paused queue.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call
-- Returns  1
-- Events   `resumed`
-- Keeps    jobs of both lists stay: a peer may have filled the other one meanwhile. The tick merges what is too long
--          for one call, and wakes the rest if there are very many lanes
-- include: base gate insert lanes

local answer = remembered()
if answer then
  return answer[1]
end
-- Most lanes that this call wakes.
local LANES = 200
local was_paused = call("HDEL", P .. "meta", "paused") == 1
-- Workers of a queue that was not paused are already awake: then only jobs from `paused` are new.
local ready = call("EXISTS", P .. "paused", P .. "prioritized") > 0
  or (was_paused and call("EXISTS", P .. "wait") == 1)
settle(P, false)
if ready then
  call("ZADD", P .. "marker", 0, "0")
else
  wake_later(P)
end
if call("HGET", P .. "meta", "ox:lanes") == "+" then
  local lanes = call("SRANDMEMBER", P .. "ox:lanes:ready", LANES)
  for _, lane in ipairs(lanes) do
    call("ZADD", lane_prefix(P, lane) .. "marker", 0, "0")
  end
  wake_for_lanes(P, lanes)
end
call("XADD", P .. "events", "*", "event", "resumed")
remember({ 1 })
return 1
