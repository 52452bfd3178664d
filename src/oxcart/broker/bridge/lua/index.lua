-- Puts jobs of other clients into the side index, after the caller has read their records.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 now, 4 how many lanes, per lane: its first facts (MessagePack),
--          how many jobs, and per job id and facts (MessagePack);
--          then, for each job that waits for others: id, facts, their ids (MessagePack)
-- Returns  how many are ready
-- Keeps    an id is in one lane at most; one that left the list meanwhile is found out when it is claimed
-- include: base lanes

asked_of_slot("SETRANGE", NEVER, 0, "")
local ready, at = 0, 5
for _ = 1, tonumber(ARGV[4]) do
  local lane, count = cmsgpack.unpack(ARGV[at]), tonumber(ARGV[at + 1])
  at = at + 2
  local ids = {}
  for i = 1, count do
    ids[i] = ARGV[at + 2 * i - 2]
  end
  local listed = call("SMISMEMBER", P .. "ox:listed", unpack(ids))
  local last = call("INCRBY", P .. "ox:turns", count)
  local scores, facts, new = {}, {}, {}
  for i = 1, count do
    if listed[i] == 0 then
      local packed = ARGV[at + 2 * i - 1]
      local turn = last - count + i
      new[#new + 1] = ids[i]
      facts[#facts + 1], facts[#facts + 2] = ids[i], packed
      local score = string.format("%.0f", (10 - cmsgpack.unpack(packed)[3]) * 1e14 + 5e13 + turn)
      scores[#scores + 1], scores[#scores + 2] = score, ids[i]
    end
  end
  at = at + 2 * count
  if #new > 0 then
    note_type(lane[1])
    call("HSET", P .. "ox:facts", unpack(facts))
    call("ZADD", lane_key(lane[1], lane[2]), unpack(scores))
    call("SADD", P .. "ox:lanes:" .. lane[1], lane[2])
    call("SADD", P .. "ox:listed", unpack(new))
    call("ZADD", P .. "ox:marker:" .. lane[1], 0, "0")
    ready = ready + #new
  end
end
for each = at, #ARGV, 3 do
  local id = ARGV[each]
  if call("SISMEMBER", P .. "ox:listed", id) == 0 then
    call("HSET", P .. "ox:facts", id, ARGV[each + 1])
    local unmet = {}
    for _, other in ipairs(cmsgpack.unpack(ARGV[each + 2])) do
      if call("GET", P .. "jobs:status:" .. other) ~= "completed" then
        unmet[#unmet + 1] = other
      end
    end
    if #unmet == 0 then
      list_job(id, cmsgpack.unpack(ARGV[each + 1]), false)
      ready = ready + 1
    else
      call("SADD", P .. "ox:listed", id)
      make_pending(id, unmet, ARGV[3])
      call("HSET", P .. "ox:job:" .. id, "depends", cmsgpack.pack(unmet), "foreign", "1")
    end
  end
end
return ready
