-- Recovers jobs of workers that are gone, after the caller has read their records.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 now or "" (time.lua), then each job as MessagePack:
--          { id, type, facts (MessagePack), result or "", reason }: with a result it becomes a dead letter,
--          without one it returns to the head of the list; without facts its record is gone
-- Returns  the ids that were recovered or became dead letters
-- Events   `stalled` and `waiting`, or `failed`, per job
-- Keeps    the slot of its type is released with the job
-- include: base lanes leaving holders

local kept = remembered()
if kept then
  return kept
end
local now, server_now = time_of(ARGV[3]), tonumber(server_ms())
local done = {}
for at = 4, #ARGV do
  local job = cmsgpack.unpack(ARGV[at])
  local id = job[1]
  local job_type = call("HGET", P .. "ox:held", id) or job[2] -- the type whose slot it has, even if its record is gone
  if is_abandoned(id, server_now) and call("SISMEMBER", P .. "jobs:active", id) == 1 then
    leave(id, job_type)
    call("ZREM", P .. "ox:suspects", id)
    if job[3] == "" then
      call("DEL", P .. "jobs:status:" .. id, P .. "ox:job:" .. id)
    else
      emit(job_type, "stalled", id)
      if job[4] == "" then
        call("HSET", P .. "ox:facts", id, job[3])
        make_ready(id, cmsgpack.unpack(job[3]), true)
        note_ready(id, now)
        emit(job_type, "waiting", id, "prev", "active")
      else
        call("HSET", P .. "ox:job:" .. id, "failedReason", job[5], "ox:category", "system", "finishedOn", now)
        bury(id, job_type, job[4], now, job[5], "dead_letter",
          fields_of_run(id, job_type, "stalled", now, "system"))
      end
      done[#done + 1] = id
    end
  end
end
return remember(done)
