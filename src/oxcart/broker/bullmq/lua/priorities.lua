-- Counts waiting jobs by priority: one step.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 the first priority to look for, 4 how many priorities at most
-- Returns  { the priority to continue from or -1, then priority and count in turn }; priority 0 is in no sorted set
-- Keeps    priorities without jobs cost nothing: the next priority is found by its score
-- include: base insert

local from, most = tonumber(ARGV[3]), tonumber(ARGV[4])
local key = P .. "prioritized"
local found = { -1 }
while true do
  local first = call("ZRANGEBYSCORE", key, from * BAND, "+inf", "WITHSCORES", "LIMIT", 0, 1)
  if not first[2] then
    return found
  end
  local priority = math.floor(tonumber(first[2]) / BAND)
  if #found > 2 * most then
    found[1] = priority
    return found
  end
  found[#found + 1] = priority
  found[#found + 1] = call("ZCOUNT", key, priority * BAND, (priority + 1) * BAND - 1)
  from = priority + 1
end
