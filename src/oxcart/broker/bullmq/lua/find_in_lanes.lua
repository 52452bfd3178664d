-- Finds jobs in the lanes of a queue.
--
-- KEYS[1]  meta of the base queue
-- ARGV     1 "", 2 "" (only reads), 3 how many ids, then these, then the lanes to search; none for all lanes, after
--          the notes of custom ids
-- Returns  per id the lane that has it, or "", or 0 if there are too many lanes to search in this call: then
--          the caller names them, some at a time
-- Keeps    a call looks up a bounded number of keys; a caller that names lanes bounds them itself
-- include: base lanes

local MOST = 1000
local last = 3 + tonumber(ARGV[3])

-- Returns the first of some lanes that has a job of this id, or "".
local function find(id, lanes)
  for from = 1, #lanes, 500 do
    local to = math.min(from + 499, #lanes)
    local keys = {}
    for i = from, to do
      keys[#keys + 1] = lane_prefix(P, lanes[i]) .. id
    end
    if call("EXISTS", unpack(keys)) > 0 then
      for i = from, to do
        if call("EXISTS", keys[i - from + 1]) == 1 then
          return lanes[i]
        end
      end
    end
  end
  return ""
end

local found, lanes, left = {}, {}, math.huge
for i = last + 1, #ARGV do
  lanes[#lanes + 1] = ARGV[i]
end
local is_all = #lanes == 0
if is_all then
  left = MOST
  lanes = call("ZCARD", P .. "ox:lanes") <= MOST and call("ZRANGE", P .. "ox:lanes", 0, -1) or nil
end
for i = 4, last do
  local id = ARGV[i]
  local known = is_all and call("HGET", P .. "ox:ids", id)
  if known and call("EXISTS", lane_prefix(P, known) .. id) == 1 then
    found[#found + 1] = known
  elseif lanes and #lanes <= left then
    left = left - #lanes
    found[#found + 1] = find(id, lanes)
  else
    found[#found + 1] = 0
  end
end
return found
