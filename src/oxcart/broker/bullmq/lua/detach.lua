-- Detaches a pipeline from a queue. When the last reader leaves, the settings from before the first are restored.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 the reader's name, 4 now or "" (time.lua)
-- Returns  how many readers are left
-- include: base

local readers = P .. "ox:readers"
call("ZREM", readers, ARGV[3])
call("ZREMRANGEBYSCORE", readers, "-inf", time_of(ARGV[4]))
local left = call("ZCARD", readers)
if left == 0 then
  local was = call("HGET", KEYS[1], "ox:was")
  if was then
    call("HSET", KEYS[1], "opts.maxLenEvents", was)
  end
  call("HDEL", KEYS[1], "ox:was", "ox:keep", "ox:until", "ox:life")
  call("DEL", P .. "ox:attempts", readers)
end
return left
