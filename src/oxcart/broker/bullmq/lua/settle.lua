-- Releases dependents of jobs that have ended, one step.
--
-- KEYS[1]  meta of a queue whose jobs wait behind gates
-- ARGV     1 "", 2 "", 3 now or "" (time.lua), 4 the hidden queue of the gates (`bull:q~gates`), 5 how many jobs to
--          release at most, 6 index of the first waiting gate to check for an ended job, 7 how many to check
-- Returns  { how many were released, how many gates wait to be settled, the next index, 0 at the end }
-- Events   those of jobs that are released or end
-- Keeps    a second release does nothing. A hidden queue without gates leaves no key behind
-- include: base gate insert store attempts parent removal failing gates

remembered()
local now, hidden, room = tonumber(time_of(ARGV[3])), ARGV[4] .. ":", tonumber(ARGV[5])
local from, step = tonumber(ARGV[6]), tonumber(ARGV[7])

for _, name in ipairs(call("LRANGE", hidden .. "wait", -room, -1)) do
  opened[#opened + 1] = { hidden, name }
end
local names, next_from = {}, 0
if step > 0 then
  names = call("ZRANGE", hidden .. "waiting-children", from, from + step - 1)
  next_from = #names == step and from + step or 0
end
open_ended(hidden, names)
open_ended(hidden, call("SRANDMEMBER", hidden .. "ox:weak", 50))
local released = settle_opened(now, room)
local left = call("LLEN", hidden .. "wait")
call("DEL", hidden .. "events") -- a peer writes events here, and no client reads or trims them
if left == 0 and call("ZCARD", hidden .. "waiting-children") == 0 then
  call("DEL", hidden .. "meta", hidden .. "marker", hidden .. "id", hidden .. "pc", hidden .. "ox:weak")
  call("SREM", P .. "ox:gates", ARGV[4])
end
return { released, left, next_from }
