-- Removes list entries whose jobs have completed or are gone. Two recoveries at once, ours and another
-- client's, insert a job twice; a client that removes a job may leave its entry.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", then the ids
-- Returns  the ids that stay: schedules, which run again and again, and jobs that now wait
-- Keeps    a completed job does not run again because of a leftover entry
-- include: base lanes

asked_of_slot("SETRANGE", NEVER, 0, "")
local stay = {}
for at = 3, #ARGV do
  local id = ARGV[at]
  local is_over = redis.pcall("GET", P .. "jobs:status:" .. id) == "completed"
    and call("EXISTS", P .. "jobs:result:" .. id) == 1
  if not record_of(id) then
    unqueue(id)
    unlist_job(id, facts_of(id))
    call("HDEL", P .. "ox:facts", id)
    call("DEL", P .. "ox:job:" .. id)
  elseif is_over and not call("ZSCORE", P .. "jobs:cron", id) then
    unqueue(id)
  else
    stay[#stay + 1] = id
  end
end
return stay
