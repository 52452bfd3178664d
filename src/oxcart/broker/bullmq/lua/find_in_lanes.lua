-- Finds jobs in the lanes of a queue.
--
-- KEYS[1]  meta of the base queue
-- ARGV     1 "", 2 "" (only reads), then ids
-- Returns  per id the lane that has it, or ""
-- include: base lanes

local lanes = call("ZRANGE", P .. "ox:lanes", 0, -1)

local function find(id)
  local known = call("HGET", P .. "ox:ids", id)
  if known and call("EXISTS", lane_prefix(P, known) .. id) == 1 then
    return known
  end
  for from = 1, #lanes, 500 do
    local last = math.min(from + 499, #lanes)
    local keys = {}
    for i = from, last do
      keys[#keys + 1] = lane_prefix(P, lanes[i]) .. id
    end
    if call("EXISTS", unpack(keys)) > 0 then
      for i = from, last do
        if call("EXISTS", keys[i - from + 1]) == 1 then
          return lanes[i]
        end
      end
    end
  end
  return ""
end

local found = {}
for i = 3, #ARGV do
  found[#found + 1] = find(ARGV[i])
end
return found
