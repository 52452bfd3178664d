-- Releases jobs whose dependencies have all completed: the dependents of one job, or all, page by page.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 now or "" (time.lua), 4 first of the pending jobs to check, "" to begin,
--          5 how many to check, 6 the job that has ended, "" to check all
-- Returns  { how many were released, how many were checked }; with many pending jobs, nothing if the last check
--          of all of them was recent
-- Events   `waiting` or `delayed` per job
-- Keeps    a dependency that was seen completed stays so, although its keys expire after a day
-- include: base lanes

asked_of_slot("SETRANGE", NEVER, 0, "")
local from, most = tonumber(ARGV[4]) or 0, tonumber(ARGV[5])
local ids, looked
if ARGV[6] ~= "" then
  local named = call("SPOP", P .. "ox:next:" .. ARGV[6], most)
  ids, looked = {}, #named
  for _, id in ipairs(named) do
    if call("ZSCORE", P .. "ox:pending", id) then
      ids[#ids + 1] = id
    end
  end
else
  -- All workers check. Together they check at most ten jobs in a ms: that is a twentieth of the server's time.
  local all, guard, now = call("ZCARD", P .. "ox:pending"), P .. "ox:settling", server_ms()
  local pause = math.max(1000, math.floor(all / 10))
  if ARGV[4] == "" and all > most and not call("SET", guard, now, "NX", "PX", pause) then
    if (tonumber(call("GET", guard)) or 0) <= tonumber(now) then
      return { 0, 0 }
    end
    call("SET", guard, now, "PX", pause) -- it was set in the future: the server's clock was set back
  end
  ids = call("ZRANGE", P .. "ox:pending", from, from + most - 1)
  looked = #ids
end
local passed = 0
for _, id in ipairs(ids) do
  local job = P .. "ox:job:" .. id
  local known = call("HMGET", job, "depends", "due", "foreign", "ended")
  local unmet = {}
  local depends = unpacked(known[1]) or {}
  for _, other in ipairs(depends) do
    local status = call("GET", P .. "jobs:status:" .. other)
    -- A firing that was queued behind another waits for its end, whatever the outcome.
    local over = known[4] and status ~= "waiting" and status ~= "delayed" and status ~= "active"
    if status ~= "completed" and not over then
      unmet[#unmet + 1] = other
    end
  end
  if call("EXISTS", P .. "jobs:data:" .. id) == 0 then
    call("ZREM", P .. "ox:pending", id)
    call("SREM", P .. "ox:listed", id)
    call("DEL", job)
    call("HDEL", P .. "ox:facts", id)
  elseif #unmet > 0 then
    if #unmet < #depends then
      call("HSET", job, "depends", cmsgpack.pack(unmet))
    end
  else
    passed = passed + 1
    call("ZREM", P .. "ox:pending", id)
    call("HDEL", job, "depends", "due", "foreign", "ended")
    local facts = facts_of(id)
    local due = tonumber(known[2] or nil) or 0
    if known[3] then
      if facts then
        list_job(id, facts, false)
        emit(facts[1], "waiting", id, "prev", "waiting-children")
      else
        call("SREM", P .. "ox:listed", id) -- the scan finds it
      end
    elseif due > tonumber(time_of(ARGV[3])) then
      call("SET", P .. "jobs:status:" .. id, "delayed")
      local score = string.format("%.0f", due)
      call("ZADD", P .. "jobs:delayed", score, id)
      call("HSET", job, "ox:moved", time_of(ARGV[3]))
      if facts then
        emit(facts[1], "delayed", id, "delay", score)
      end
    else
      make_ready(id, facts, false)
      note_ready(id, time_of(ARGV[3]))
      if facts then
        emit(facts[1], "waiting", id, "prev", "waiting-children")
      end
    end
  end
end
return { passed, looked }
