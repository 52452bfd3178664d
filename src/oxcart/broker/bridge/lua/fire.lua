-- Fires schedules: each due time becomes a job, and the same step advances the schedule.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 scheduler id, 4 its term, 5 now or "" (time.lua), then each schedule as MessagePack:
--          { id, the due time that was read, the next one or "", "beside", "skip" or "queue",
--            { { job id, record, facts, the fields of its event (both MessagePack), the rule that made it (JSON, up
--                to the number of the run) } … } }
-- Returns  how many jobs were made; -1 if the scheduler no longer leads
-- Events   `added`, and `waiting` or `waiting-children` per job
-- Keeps    a due time fires once: a second caller finds the schedule advanced; none fires before its time
-- include: base lanes

local kept = remembered()
if kept then
  return kept[1]
end
if call("GET", P .. "scheduler:lock") ~= ARGV[3] or call("GET", P .. "ox:term") ~= ARGV[4] then
  return -1
end

-- Returns whether a firing may begin: "now", "after" the last one, or not at all.
local function begins(id, overlap)
  local last = call("HGET", P .. "ox:schedule:" .. id, "last")
  if overlap == "beside" or not last then
    return "now"
  end
  local status = call("GET", P .. "jobs:status:" .. last)
  if status ~= "waiting" and status ~= "delayed" and status ~= "active" then
    return "now"
  end
  return overlap == "queue" and status == "active" and "after" or nil, last
end

local made, now = 0, tonumber(time_of(ARGV[5]))
for at = 6, #ARGV do
  local one = cmsgpack.unpack(ARGV[at])
  local id = one[1]
  local read = call("ZSCORE", P .. "jobs:cron", id)
  if read and tonumber(read) == one[2] and one[2] <= now then
    if one[3] == "" then
      call("ZREM", P .. "jobs:cron", id)
      call("DEL", P .. "jobs:data:" .. id, P .. "jobs:status:" .. id)
    else
      call("ZADD", P .. "jobs:cron", string.format("%.0f", one[3]), id)
    end
    for _, job in ipairs(one[5]) do
      local when, last = begins(id, one[4])
      if when and call("SET", P .. "jobs:data:" .. job[1], job[2], "NX") then
        local facts = cmsgpack.unpack(job[3])
        call("HSET", P .. "ox:facts", job[1], job[3])
        call("HSET", P .. "ox:schedule:" .. id, "last", job[1])
        local run = call("HINCRBY", P .. "ox:schedule:" .. id, "fired", 1)
        emit_added(facts[1], job[1], job[4], job[5] .. run .. "}")
        if when == "now" then
          make_ready(job[1], facts, false)
          emit(facts[1], "waiting", job[1])
        else
          call("SET", P .. "jobs:status:" .. job[1], "waiting")
          make_pending(job[1], { last }, now)
          call("HSET", P .. "ox:job:" .. job[1], "depends", cmsgpack.pack({ last }), "ended", "1")
          emit(facts[1], "waiting-children", job[1])
        end
        made = made + 1
      elseif not when then
        call("HINCRBY", P .. "ox:schedule:" .. id, "skipped", 1)
      end
    end
    if one[3] == "" then
      call("DEL", P .. "ox:schedule:" .. id)
    end
  end
end
return remember({ made })[1]
