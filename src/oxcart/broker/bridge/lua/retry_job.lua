-- Lets ended jobs run again.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 type, 4 "L" for the head of the list or "", then per job: id, its facts,
--          its record with the attempts reset or "", the fields of its event (MessagePack)
-- Returns  per job 1, -1 no such job, -3 it has not ended
-- Events   `waiting` per job, with name, creation and labels while a pipeline reads
-- Keeps    it leaves the dead letters; none of its keys expires any more
-- include: base steps lanes

local kept = remembered()
if kept then
  return kept
end

local function retry(id, packed, record, fields)
  local status = call("GET", P .. "jobs:status:" .. id)
  if call("EXISTS", P .. "jobs:data:" .. id) == 0 then
    return -1
  elseif status ~= "dead" and status ~= "failed" and status ~= "completed" then
    return -3
  end
  call("LREM", P .. "jobs:deadletter", 1, id)
  call("DEL", P .. "jobs:result:" .. id, P .. "jobs:progress:" .. id)
  for _, state in ipairs({ "completed", "failed", "cancelled" }) do
    call("ZREM", P .. "ox:ended:" .. state .. ":" .. ARGV[3], id)
  end
  call("PERSIST", P .. "ox:job:" .. id)
  call("HDEL", P .. "ox:job:" .. id, "finishedOn", "failedReason", "stacktrace", "ox:category", "ox:code", "ox:cancel",
    "ox:dead")
  replay_steps(P .. "ox:job:" .. id, status == "completed")
  if record == "" then
    call("PERSIST", P .. "jobs:data:" .. id)
  else
    call("SET", P .. "jobs:data:" .. id, record)
    call("HDEL", P .. "ox:job:" .. id, "ox:excused")
    local starts = call("HGET", P .. "ox:job:" .. id, "ats")
    if starts then
      call("HSET", P .. "ox:job:" .. id, "ox:forgiven", starts) -- they do not count against the bound on starts
    end
  end
  call("HSET", P .. "ox:facts", id, packed)
  make_ready(id, cmsgpack.unpack(packed), ARGV[4] == "L")
  note_ready(id, server_ms())
  local prev = status == "dead" and "failed" or status
  if is_read(ARGV[3]) then -- the tables may have been built up to the end of the earlier generation
    emit(ARGV[3], "waiting", id, "prev", prev, "outcome", "replayed", unpack(cmsgpack.unpack(fields)))
  else
    emit(ARGV[3], "waiting", id, "prev", prev)
  end
  return 1
end

local codes = {}
for at = 5, #ARGV, 4 do
  codes[#codes + 1] = retry(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
end
return remember(codes)
