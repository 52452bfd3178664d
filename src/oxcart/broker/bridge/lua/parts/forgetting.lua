-- Removes jobs from the side index that other clients have claimed, ended or removed.

local OVER = { completed = "completed", dead = "failed", failed = "cancelled" }

-- Records a job that another client has ended. Its record is removed with its result, as ours are; a dead letter stays.
local function note_foreign_end(id, job_type, status, now)
  local key = P .. "ox:ended:" .. OVER[status] .. ":" .. job_type
  local result = P .. "jobs:result:" .. id
  local left = call("PTTL", result)
  if call("ZSCORE", P .. "jobs:cron", id) or call("ZSCORE", key, id) or (left < 0 and status ~= "dead") then
    return 0
  end
  local ended = tonumber(string.match(call("GETRANGE", result, -256, -1), '"completedAt"%s*:%s*(%d+)'))
  note_end(id, job_type, OVER[status], string.format("%.0f", math.min(ended or now, now)))
  if status ~= "dead" then
    for _, kind in ipairs({ "jobs:data:", "jobs:status:", "jobs:progress:" }) do
      call("PEXPIRE", P .. kind .. id, left)
    end
  end
  return 1
end

-- Our record of a job's runs is removed with the job; until then its facts stay, because they lead to it. Nothing is
-- lost by that: the next scan finds an id that is still in the list.
local function forget_job(id, now)
  local facts, status = facts_of(id), call("GET", P .. "jobs:status:" .. id)
  local runs = P .. "ox:job:" .. id
  unlist_job(id, facts)
  if call("EXISTS", P .. "jobs:data:" .. id) == 0 then
    call("DEL", runs)
    if not OVER[status] then
      call("DEL", P .. "jobs:status:" .. id)
    end
  elseif OVER[status] then
    call("EXPIRE", runs, 86400)
    if facts then
      note_foreign_end(id, facts[1], status, now)
    end
  end
  if call("PTTL", runs) ~= -1 then
    call("HDEL", P .. "ox:facts", id)
  end
end

-- Checks a random sample of the index, and removes jobs that other clients have ended or removed.
local function heal_index(some, now)
  for _, id in ipairs(call("HRANDFIELD", P .. "ox:facts", some)) do
    local over = OVER[call("GET", P .. "jobs:status:" .. id)] or call("EXISTS", P .. "jobs:data:" .. id) == 0
      or call("EXISTS", P .. "jobs:result:" .. id) == 1 -- of a client that stores no status
    if over and call("HEXISTS", P .. "ox:held", id) == 0 then
      forget_job(id, now)
    end
  end
end
