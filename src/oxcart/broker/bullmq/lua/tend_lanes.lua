-- The tick of a queue's lanes: promotes due jobs, sets missing markers, corrects the sets of lanes, and removes lanes
-- that have been empty for a while.
--
-- KEYS[1]  meta of the base queue
-- ARGV     1 "", 2 "", 3 now or "" (time.lua), 4 the first lane to check, or "" to begin, 5 how many,
--          6 for how many ms no other worker may begin, 7 ms after which an empty lane is removed,
--          8 "1" if this worker also recovers stalled jobs,
--          9 ms without a sign of life after which the server counts as having been away, or ""
-- Returns  { the next lane to check, or -1 at the end, or -2 if another worker did it just now; lanes with expired
--          jobs; lanes with jobs that wait for others; busy lanes }
-- Events   `waiting` per promoted job
-- Keeps    a lane is removed only if it holds no job, no schedule and no settings, and no pipeline reads it; by the
--          server's clock. A call promotes a bounded number of jobs: then it ends early, and the next call continues
--          there. A worker that does not recover jobs does not keep out one that does
-- include: base gate insert lanes outage

local now, first, step = tonumber(time_of(ARGV[3])), tonumber(ARGV[4]) or 0, tonumber(ARGV[5])
remembered()
local guard = P .. "ox:lanes:tended"
local seen_now = server_ms()
local guarded = ARGV[8] .. ":" .. seen_now
if ARGV[4] == "" and not call("SET", guard, guarded, "NX", "PX", ARGV[6]) then
  local recovers, set_at = string.match(call("GET", guard) or "", "^([01]):(%d+)$")
  local is_past = tonumber(set_at or 0) > tonumber(seen_now) -- the server's clock was set back
  if not is_past and (ARGV[8] ~= "1" or recovers == "1") then
    return { -2, {}, {}, {} }
  end
  call("SET", guard, guarded, "PX", ARGV[6])
end
local idle = tonumber(seen_now) - tonumber(ARGV[7])
-- A lane that is registered again moves behind all others, but not twice in one tick.
local old = math.min(idle, tonumber(seen_now) - 10000)
local over, gated, busy, woken = {}, {}, {}, {}
-- Most jobs that one lane promotes at a tick, and all lanes in one call.
local LANE, CALL = 50, 50
local let_through, moved = 0, 0
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
    prefix .. "metrics:failed:data", prefix .. "ox:expiring", prefix .. "ox:attempts", prefix .. "ox:alive", prefix .. "ox:away")
  call("ZREM", P .. "ox:lanes", lane)
  member(ready_key, lane, false)
  member(busy_key, lane, false)
  call("INCR", P .. "ox:lanes:version")
  if call("EXISTS", P .. "ox:lanes") == 0 then
    call("HDEL", P .. "meta", "ox:lanes")
  end
  return true
end

-- Returns whether the lane still exists.
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
  if seen <= old then
    call("ZADD", P .. "ox:lanes", seen_now, lane)
    moved = moved + 1
  end
  if call("HGET", prefix .. "meta", "ox:lanes") ~= P then
    call("HSET", prefix .. "meta", "ox:lanes", P)
  end
  if call("EXISTS", prefix .. "ox:gates", prefix .. "waiting-children") > 0 then -- also if a gate was lost
    gated[#gated + 1] = lane
  end
  if live == 0 then
    return true
  end
  local gate = read_gate(prefix)
  if not gate.paused and settle(prefix, false) then
    let_through = CALL
  end
  let_through = let_through + promote_due(prefix, gate, now, LANE)
  local is_ready = call("EXISTS", prefix .. "wait", prefix .. "prioritized") > 0
  member(ready_key, lane, is_ready)
  if is_ready and not gate.closed and call("ZADD", prefix .. "marker", 0, "0") == 1 then
    woken[#woken + 1] = lane
  end
  local is_busy = call("EXISTS", prefix .. "active") == 1
  member(busy_key, lane, is_busy)
  if is_busy then
    busy[#busy + 1] = lane
    if ARGV[9] ~= "" then
      stay_alive(prefix, ARGV[9])
    end
  end
  local expiring = call("ZRANGE", prefix .. "ox:expiring", 0, 0, "WITHSCORES")
  if expiring[2] and tonumber(expiring[2]) <= now then
    over[#over + 1] = lane
  end
  return true
end

local lanes = call("ZRANGE", P .. "ox:lanes", first, first + step - 1, "WITHSCORES")
local gone, looked = 0, 0
for i = 1, #lanes, 2 do
  -- A lane that cannot be read does not stop the others.
  local fine, stays = pcall(tend, lanes[i], tonumber(lanes[i + 1]))
  if fine and not stays then
    gone = gone + 1
  end
  looked = looked + 1
  if let_through >= CALL then
    break
  end
end
if looked > gone and call("HGET", P .. "meta", "ox:lanes") ~= "+" then
  call("HSET", P .. "meta", "ox:lanes", "+") -- a peer that obliterated the base queue removed it
end
wake_for_lanes(P, woken)
local is_end = looked == #lanes / 2 and looked < step
return { is_end and -1 or first + looked - gone - moved, over, gated, busy }
