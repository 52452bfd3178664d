-- Puts jobs of other clients into the side index, after the caller has read their records.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 now, then per job: id, facts (MessagePack),
--          the ids of jobs that it waits for (MessagePack), empty for none
-- Returns  how many are ready
-- Keeps    an id is in one lane at most; one that left the list meanwhile is found out when it is claimed
-- include: base lanes

asked_of_slot("SETRANGE", NEVER, 0, "")
local ready = 0
for at = 4, #ARGV, 3 do
  local id = ARGV[at]
  if call("SISMEMBER", P .. "ox:listed", id) == 0 then
    call("HSET", P .. "ox:facts", id, ARGV[at + 1])
    local unmet = {}
    for _, other in ipairs(ARGV[at + 2] == "" and {} or cmsgpack.unpack(ARGV[at + 2])) do
      if call("GET", P .. "jobs:status:" .. other) ~= "completed" then
        unmet[#unmet + 1] = other
      end
    end
    if #unmet == 0 then
      list_job(id, cmsgpack.unpack(ARGV[at + 1]), false)
      ready = ready + 1
    else
      call("SADD", P .. "ox:listed", id)
      call("ZADD", P .. "ox:pending", ARGV[3], id)
      call("HSET", P .. "ox:job:" .. id, "depends", cmsgpack.pack(unmet), "foreign", "1")
    end
  end
end
return ready
