-- Releases jobs whose dependencies have all completed: the dependents of one job, or all, page by page.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 now or "" (time.lua), 4 from which of the pending jobs on, "" to begin,
--          5 how many to look at, 6 the job that has ended, "" to look at all
-- Returns  { how many were let through, how many were looked at }; where many wait, nothing while the last look
--          at all of them is not long ago
-- Events   `waiting` or `delayed` per job
-- Keeps    a dependency that was seen completed stays so, though its keys go after a day
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
  -- All workers look. Together they look at ten jobs in a ms at most: that is a twentieth of the server's time.
  local all, guard, now = call("ZCARD", P .. "ox:pending"), P .. "ox:settling", server_ms()
  local pause = math.max(1000, math.floor(all / 10))
  if ARGV[4] == "" and all > most and not call("SET", guard, now, "NX", "PX", pause) then
    if (tonumber(call("GET", guard)) or 0) <= tonumber(now) then
      return { 0, 0 }
    end
    call("SET", guard, now, "PX", pause) -- set in the future: the server's clock was set back
  end
  ids = call("ZRANGE", P .. "ox:pending", from, from + most - 1)
  looked = #ids
end
local passed = 0
for _, id in ipairs(ids) do
  local job = P .. "ox:job:" .. id
  local known = call("HMGET", job, "depends", "due", "foreign", "ended")
  local unmet = {}
  local depends = known[1] and cmsgpack.unpack(known[1]) or {}
  for _, other in ipairs(depends) do
    local status = call("GET", P .. "jobs:status:" .. other)
    -- A firing that was queued behind another waits for its end, however that was.
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
    local due = tonumber(known[2] or 0)
    if known[3] then
      if facts then
        list_job(id, facts, false)
        tell(facts[1], "waiting", id, "prev", "waiting-children")
      else
        call("SREM", P .. "ox:listed", id) -- the scan finds it
      end
    elseif due > tonumber(time_of(ARGV[3])) then
      call("SET", P .. "jobs:status:" .. id, "delayed")
      call("ZADD", P .. "jobs:delayed", known[2], id)
      call("HSET", job, "ox:moved", time_of(ARGV[3]))
      if facts then
        tell(facts[1], "delayed", id, "delay", known[2])
      end
    else
      make_ready(id, facts, false)
      note_ready(id, time_of(ARGV[3]))
      if facts then
        tell(facts[1], "waiting", id, "prev", "waiting-children")
      end
    end
  end
end
return { passed, looked }
