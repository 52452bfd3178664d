-- Changes the delay of a delayed job, counted from now.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 id, 4 delay ms, 5 now or "" (time.lua)
-- Returns  1, or -1 no such job, -3 not delayed
-- Events   `delayed`
-- include: base insert

local answer = remembered()
if answer then
  return answer[1]
end
local id, delay, now = ARGV[3], tonumber(ARGV[4]), tonumber(time_of(ARGV[5]))
if call("EXISTS", P .. id) == 0 then
  return -1
end
-- The job's old place counts when the new score is computed, as with peers.
local score, due = delayed_score(P, now, delay)
if call("ZREM", P .. "delayed", id) == 0 then
  return -3
end
call("HSET", P .. id, "delay", ARGV[4])
call("ZADD", P .. "delayed", score, id)
call("XADD", P .. "events", "MAXLEN", "~", max_events(P), "*",
  "event", "delayed", "jobId", id, "delay", string.format("%.0f", due))
wake_later(P)
remember({ 1 })
return 1
