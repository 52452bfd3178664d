-- Counts ended jobs by the minute, in the series that peers' getMetrics reads.
--
-- `metrics:<state>` holds how many ended in all, and time and number of the last point.
-- `metrics:<state>:data` holds the points, the newest at the head. A job that ends in a later minute than the last
-- point makes one: how many ended between the two, then a zero for every minute without a point.
-- A batch reads the counters once and writes them once.

local MINUTE = 60000
local series = {}

local function count_end(state, now, most)
  local one = series[state]
  if one == nil then
    local kept = redis.pcall("HMGET", P .. "metrics:" .. state, "count", "prevTS", "prevCount")
    one = not kept.err and { count = tonumber(kept[1]) or 0, at = tonumber(kept[2]), before = tonumber(kept[3]) or 0,
      points = {} }
    series[state] = one
  end
  if not one then
    return -- a peer stores something else here
  end
  local count = one.count
  one.count = count + 1
  if not one.at then
    one.at, one.before = now, 0
    return
  end
  local minutes = math.min(math.floor(now / MINUTE) - math.floor(one.at / MINUTE), most)
  if minutes > 0 then
    local points = one.points
    points[#points + 1] = count - one.before
    for _ = 2, minutes do
      points[#points + 1] = 0
    end
    one.before, one.at = count, now
  end
end

local function write_counts(most)
  for state, one in pairs(series) do
    if one then
      local key = P .. "metrics:" .. state
      redis.pcall("HSET", key, "count", one.count, "prevTS", one.at, "prevCount", one.before)
      local points = one.points
      for from = 1, #points, 5000 do
        redis.pcall("LPUSH", key .. ":data", unpack(points, from, math.min(from + 4999, #points)))
      end
      if #points > 0 then
        redis.pcall("LTRIM", key .. ":data", 0, most - 1)
      end
    end
  end
end
