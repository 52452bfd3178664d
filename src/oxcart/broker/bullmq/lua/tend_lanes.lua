-- The tick of a queue's lanes: lets due jobs through, sets markers that are missing, keeps the sets of lanes true, and
-- removes lanes in which nothing has been for a while.
--
-- KEYS[1]  meta of the base queue
-- ARGV     1 "", 2 "", 3 now, 4 the first lane to look at, from 0, 5 how many, 6 for how many ms nobody else may begin,
--          7 after how many ms an empty lane goes
-- Returns  { the next lane to look at, or 0 at the end, or -1 where another worker did it just now; lanes whose jobs'
--          lifetimes are over; lanes whose jobs wait for others; lanes that are busy }
-- Events   `waiting` per job whose time has come
-- Keeps    a lane is removed only if it holds no job, no schedule and no settings, and no pipeline reads it
-- include: base gate insert lanes

local now, first, step = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
remembered()
if first == 0 and not call("SET", P .. "ox:lanes:tended", "1", "NX", "PX", ARGV[6]) then
  return { -1, {}, {}, {} }
end
local idle = now - tonumber(ARGV[7])
local over, gated, busy = {}, {}, {}
local ready_key, busy_key = P .. "ox:lanes:ready", P .. "ox:lanes:busy"

local function member(key, lane, is_in)
  return call(is_in and "SADD" or "SREM", key, lane)
end

local function forget(lane, prefix)
  local kept = call("HMGET", prefix .. "meta", "paused", "concurrency", "max")
  if kept[1] or kept[2] or kept[3] or is_ahead(call("HGET", prefix .. "meta", "ox:until")) then
    return false
  end
  call("UNLINK", prefix .. "meta", prefix .. "events", prefix .. "id", prefix .. "pc", prefix .. "marker",
    prefix .. "limiter", prefix .. "delay", prefix .. "stalled", prefix .. "stalled-check",
    prefix .. "metrics:completed", prefix .. "metrics:completed:data", prefix .. "metrics:failed",
    prefix .. "metrics:failed:data", prefix .. "ox:expiring", prefix .. "ox:attempts")
  call("ZREM", P .. "ox:lanes", lane)
  member(ready_key, lane, false)
  member(busy_key, lane, false)
  call("INCR", P .. "ox:lanes:version")
  if call("EXISTS", P .. "ox:lanes") == 0 then
    call("HDEL", P .. "meta", "ox:lanes")
  end
  return true
end

-- Returns whether the lane is still there.
local function tend(lane, seen)
  local prefix = lane_prefix(P, lane)
  local live = call("EXISTS", prefix .. "wait", prefix .. "paused", prefix .. "prioritized", prefix .. "active",
    prefix .. "delayed", prefix .. "ox:expiring")
  if live == 0 then
    member(ready_key, lane, false)
    member(busy_key, lane, false)
    local kept = call("EXISTS", prefix .. "completed", prefix .. "failed", prefix .. "waiting-children",
      prefix .. "repeat", prefix .. "ox:callbacks", prefix .. "ox:gates")
    if kept == 0 then
      return seen > idle or not forget(lane, prefix)
    end
  end
  if seen <= idle then
    call("ZADD", P .. "ox:lanes", now, lane)
  end
  if call("HGET", prefix .. "meta", "ox:lanes") ~= P then
    call("HSET", prefix .. "meta", "ox:lanes", P)
  end
  if call("EXISTS", prefix .. "ox:gates", prefix .. "waiting-children") > 0 then -- also where a gate was lost
    gated[#gated + 1] = lane
  end
  if live == 0 then
    return true
  end
  local gate = read_gate(prefix)
  if not gate.paused then
    settle(prefix, false)
  end
  promote_due(prefix, gate, now, 50)
  local is_ready = call("EXISTS", prefix .. "wait", prefix .. "prioritized") > 0
  member(ready_key, lane, is_ready)
  if is_ready and not gate.closed and call("ZADD", prefix .. "marker", 0, "0") == 1 then
    tell_of_lane(P, "ox:crowded", lane)
  end
  local is_busy = call("EXISTS", prefix .. "active") == 1
  member(busy_key, lane, is_busy)
  if is_busy then
    busy[#busy + 1] = lane
  end
  local expiring = call("ZRANGE", prefix .. "ox:expiring", 0, 0, "WITHSCORES")
  if expiring[2] and tonumber(expiring[2]) <= now then
    over[#over + 1] = lane
  end
  return true
end

local lanes = call("ZRANGE", P .. "ox:lanes", first, first + step - 1, "WITHSCORES")
local gone = 0
for i = 1, #lanes, 2 do
  -- A lane that cannot be read stops none of the others.
  local fine, stays = pcall(tend, lanes[i], tonumber(lanes[i + 1]))
  if fine and not stays then
    gone = gone + 1
  end
end
return { #lanes == 2 * step and first + step - gone or 0, over, gated, busy }
