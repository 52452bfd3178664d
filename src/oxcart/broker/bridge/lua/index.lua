-- Adds jobs of other clients to the side index, after the caller has read their records.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 now or "" (time.lua), 4 how many lanes, per lane and priority: its first facts
--          (MessagePack), how many jobs, and per job id, facts and the fields of its event (MessagePack), "" if it
--          ran before;
--          then, for each job that waits for others: id, facts, the fields of its event, their ids (MessagePack)
-- Returns  how many are ready
-- Events   `added`, and `waiting` or `waiting-children` per job, while a pipeline reads
-- Keeps    an id is in one lane at most; a claim notices an id that left the list meanwhile
-- include: base lanes

asked_of_slot("SETRANGE", NEVER, 0, "")

local function emit_found(job_type, id, fields, place)
  if not is_read(job_type) then
    return
  end
  if fields ~= "" then
    emit_added(job_type, id, fields)
  end
  if place == "waiting" then
    emit(job_type, "waiting", id)
  else
    emit(job_type, "waiting-children", id)
  end
end

local ready, at = 0, 5
for _ = 1, tonumber(ARGV[4]) do
  local lane, count = cmsgpack.unpack(ARGV[at]), tonumber(ARGV[at + 1])
  at = at + 2
  local ids = {}
  for i = 1, count do
    ids[i] = ARGV[at + 3 * i - 3]
  end
  local listed = call("SMISMEMBER", P .. "ox:listed", unpack(ids))
  local last = call("INCRBY", P .. "ox:turns", count)
  local first = (10 - lane[3]) * 1e14 + 5e13 + last - count
  local scores, facts, new = {}, {}, {}
  for i = 1, count do
    if listed[i] == 0 then
      new[#new + 1] = ids[i]
      facts[2 * #new - 1], facts[2 * #new] = ids[i], ARGV[at + 3 * i - 2]
      scores[2 * #new - 1], scores[2 * #new] = first + i, ids[i]
      emit_found(lane[1], ids[i], ARGV[at + 3 * i - 1], "waiting")
    end
  end
  at = at + 3 * count
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
for each = at, #ARGV, 4 do
  local id, job_type = ARGV[each], cmsgpack.unpack(ARGV[each + 1])[1]
  if call("SISMEMBER", P .. "ox:listed", id) == 0 then
    call("HSET", P .. "ox:facts", id, ARGV[each + 1])
    local unmet = {}
    for _, other in ipairs(cmsgpack.unpack(ARGV[each + 3])) do
      if call("GET", P .. "jobs:status:" .. other) ~= "completed" then
        unmet[#unmet + 1] = other
      end
    end
    if #unmet == 0 then
      list_job(id, cmsgpack.unpack(ARGV[each + 1]), false)
      emit_found(job_type, id, ARGV[each + 2], "waiting")
      ready = ready + 1
    else
      call("SADD", P .. "ox:listed", id)
      make_pending(id, unmet, time_of(ARGV[3]))
      call("HSET", P .. "ox:job:" .. id, "depends", cmsgpack.pack(unmet), "foreign", "1")
      emit_found(job_type, id, ARGV[each + 2], "waiting-children")
    end
  end
end
return ready
