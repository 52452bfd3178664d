-- Attaches a pipeline to the events of a type: until its deadline more are kept, with more fields for each run.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 type, 4 the reader's name, 5 for how many ms, 6 how many events to keep at least,
--          7 now or "" (time.lua), 8 a mark for the stream's generation, used if it has none
-- Returns  { events kept now, events kept before this call, the mark of the stream's generation }
-- Keeps    one hash holds the wishes of all readers, and expires when the last of them has not renewed
-- include: base readers

asked_of_slot("SETRANGE", NEVER, 0, "")
local key = P .. "ox:reading:" .. ARGV[3]
local before = call("HGET", key, "keep") or "10000"
local keep = string.format("%.0f", math.max(tonumber(ARGV[6]), tonumber(before)))
local now = tonumber(time_of(ARGV[7]))
call("HSET", key, "keep", keep, "reader:" .. ARGV[4], string.format("%.0f", now + ARGV[5]))
call("HSETNX", key, "life", ARGV[8])
live_readers(key, now)
return { tonumber(keep), tonumber(before), call("HGET", key, "life") }
