-- Adds jobs.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 now or "" (time.lua), 4 how many jobs, then per job:
--          id, record, facts (MessagePack), time at which it is due, or "+" and its delay, or 0, "L" for the head of the
--          list or "", the fields of its event (MessagePack), offset in its record at which to write the time of its
--          creation or "", how many jobs it waits for, their ids
-- Returns  per job 1, or 0 if a job of this id exists, or the id of a dependency that does not exist;
--          last the server's time
-- Events   `added`, and `waiting`, `delayed` or `waiting-children` per job
-- Keeps    a job waits only for existing jobs, so for none that comes after it: there are no cycles;
--          a job is in one of waiting, delayed and pending, and its status names it;
--          the index holds few jobs that other clients have ended, even if no worker of ours serves the namespace
-- include: base lanes
-- include when needed: leaving forgetting

-- By how many jobs the index may exceed the jobs that have not ended.
local SLACK = 1000

local kept = remembered()
if kept then
  return kept
end
local now = time_of(ARGV[3])
local answer, at = {}, 5
for i = 1, tonumber(ARGV[4]) do
  local id, record, packed, due, front = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local depends, created_at = tonumber(ARGV[at + 7]), tonumber(ARGV[at + 6])
  if created_at then -- the caller left room for the digits of a time
    record = string.sub(record, 1, created_at) .. now .. string.sub(record, created_at + #now + 1)
  end
  if string.byte(due) == 43 then -- +
    due = string.format("%.0f", now + string.sub(due, 2))
  end
  local unknown
  for n = 1, depends do
    local other = ARGV[at + 7 + n]
    if call("EXISTS", P .. "jobs:data:" .. other) == 0
      and call("GET", P .. "jobs:status:" .. other) ~= "completed" then
      unknown = other
    end
  end
  if unknown and call("EXISTS", P .. "jobs:data:" .. id) == 0 then
    answer[i] = unknown
  elseif call("SET", P .. "jobs:data:" .. id, record, "NX") then
    local facts = cmsgpack.unpack(packed)
    call("HSET", P .. "ox:facts", id, packed)
    note_type(facts[1])
    emit_added(facts[1], id, ARGV[at + 5])
    local unmet = {}
    for n = 1, depends do
      local other = ARGV[at + 7 + n]
      if call("GET", P .. "jobs:status:" .. other) ~= "completed" then
        unmet[#unmet + 1] = other
      end
    end
    if #unmet > 0 then
      call("SET", P .. "jobs:status:" .. id, "waiting")
      make_pending(id, unmet, now)
      call("HSET", P .. "ox:job:" .. id, "depends", cmsgpack.pack(unmet), "due", due)
      emit(facts[1], "waiting-children", id)
    elseif tonumber(due) > 0 then
      call("SET", P .. "jobs:status:" .. id, "delayed")
      call("ZADD", P .. "jobs:delayed", due, id)
      call("ZADD", P .. "ox:marker:" .. facts[1], due, "1")
      emit(facts[1], "delayed", id, "delay", due)
    else
      make_ready(id, facts, front == "L")
      emit(facts[1], "waiting", id)
    end
    answer[i] = 1
  else
    answer[i] = 0
  end
  at = at + 8 + depends
end
local known = call("HLEN", P .. "ox:facts") - SLACK
if known > 0
  and known > call("LLEN", WAITING) + call("ZCARD", P .. "jobs:delayed") + call("ZCARD", P .. "ox:pending") then
  -- A producer without the right to one of its commands still adds.
  pcall(seldom().heal_index, 10 + 2 * tonumber(ARGV[4]), tonumber(server_ms()))
end
answer[#answer + 1] = tonumber(server_ms())
return remember(answer)
