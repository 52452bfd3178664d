-- A worker's heartbeat: writes its record, and forgets workers that have not been heard of.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 now, 4 the worker, 5 its record or "" where it ends, 6 for how many ms it is believed to live,
--          7 "1" where it is to be told of new lanes, "2" of every add to a lane, else ""
-- Returns  1
-- include: base

remembered()
local now, worker, life, told = tonumber(ARGV[3]), ARGV[4], ARGV[6], ARGV[7]
local record = P .. "ox:worker:" .. worker

local function listed(set, is_in)
  local key = P .. set
  call("ZREMRANGEBYSCORE", key, "-inf", now - tonumber(life))
  if is_in then
    call("ZADD", key, ARGV[3], worker)
    call("PEXPIRE", key, life)
  else
    call("ZREM", key, worker)
  end
end

local lives = ARGV[5] ~= ""
listed("ox:workers", lives)
listed("ox:listeners", lives and told ~= "")
listed("ox:crowded", lives and told == "2")
if lives then
  call("SET", record, ARGV[5], "PX", life)
else
  call("UNLINK", record, P .. "ox:wake:" .. worker)
end
return 1
