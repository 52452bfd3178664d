-- Removes jobs with all their keys.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 type, 4 "1" to remove leased jobs as well, then the ids
-- Returns  per job 1, 0 it is leased, -1 no such job
-- Events   `removed` per job
-- Keeps    a schedule whose own id was run, as the specification's scheduler does: its run is removed, and it stays
-- include: base lanes leaving

local kept = remembered()
if kept then
  return kept
end

local function remove(id)
  if call("EXISTS", P .. "jobs:data:" .. id) == 0 then
    return -1
  elseif call("SISMEMBER", P .. "jobs:active", id) == 1 or call("EXISTS", P .. "jobs:lock:" .. id) == 1 then
    if ARGV[4] ~= "1" then
      return 0
    end
    leave(id, ARGV[3])
  end
  unqueue(id)
  call("ZREM", P .. "jobs:delayed", id)
  local is_run = call("GET", P .. "jobs:status:" .. id) ~= "cron" and call("ZSCORE", P .. "jobs:cron", id)
  if not is_run then
    call("ZREM", P .. "jobs:cron", id)
  end
  call("ZREM", P .. "ox:pending", id)
  call("LREM", P .. "jobs:deadletter", 1, id)
  for _, state in ipairs({ "completed", "failed", "cancelled" }) do
    call("ZREM", P .. "ox:ended:" .. state .. ":" .. ARGV[3], id)
  end
  unlist_job(id, facts_of(id))
  call("HDEL", P .. "ox:facts", id)
  call("DEL", P .. "jobs:result:" .. id, P .. "jobs:progress:" .. id, P .. "ox:job:" .. id, P .. "ox:next:" .. id)
  if is_run then
    call("SET", P .. "jobs:status:" .. id, "cron")
  else
    call("DEL", P .. "jobs:data:" .. id, P .. "jobs:status:" .. id)
  end
  emit(ARGV[3], "removed", id)
  return 1
end

local codes = {}
for at = 5, #ARGV do
  codes[#codes + 1] = remove(ARGV[at])
end
return remember(codes)
