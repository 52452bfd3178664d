-- Attaches a pipeline to a queue: until the reader's deadline more events are kept and attempts are recorded.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 the reader's name, 4 for how many ms, 5 how many events to keep at least,
--          6 now or "" (time.lua),
--          7 a mark for the stream's generation, used if it has none
-- Returns  { events kept now, the setting before this call, the mark of the stream's generation }; an empty list
--          if there is no such queue
-- Keeps    `opts.maxLenEvents` is never lowered here. `ox:was` holds its value from before the first reader.
-- include: base

remembered()
if call("EXISTS", KEYS[1]) == 0 then
  return {}
end
local readers = P .. "ox:readers"
local now = time_of(ARGV[6])
local till = string.format("%.0f", now + ARGV[4])
call("ZADD", readers, till, ARGV[3])
call("ZREMRANGEBYSCORE", readers, "-inf", now)
local last = call("ZREVRANGE", readers, 0, 0, "WITHSCORES")
local meta = call("HMGET", KEYS[1], "opts.maxLenEvents", "ox:keep")
local before = tonumber(meta[1]) and meta[1] or "10000" -- a peer may have written anything
local keep = math.max(tonumber(ARGV[5]), tonumber(meta[2]) or 0)
call("HSETNX", KEYS[1], "ox:was", before)
call("HSETNX", KEYS[1], "ox:life", ARGV[7])
call("HSET", KEYS[1], "ox:keep", string.format("%.0f", keep), "ox:until", last[2] or till)
if tonumber(before) < keep then
  call("HSET", KEYS[1], "opts.maxLenEvents", string.format("%.0f", keep))
end
return { math.max(keep, tonumber(before)), tonumber(before), call("HGET", KEYS[1], "ox:life") }
