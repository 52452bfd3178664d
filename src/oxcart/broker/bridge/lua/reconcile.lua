-- Corrects the counter of a type's running jobs.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 type, 4 how many active jobs no worker of ours has leased, then those of
--          them that are of the type
-- Returns  1 if the counter was wrong and was set, else 0
-- Keeps    a job whose lock a worker of ours has is in `active`;
--          while workers of other clients run jobs, a counter is set only if it was wrong by the same amount last time:
--          those clients count and move a job in separate steps
-- include: base

asked_of_slot("SETRANGE", NEVER, 0, "")
local job_type = ARGV[3]
local ours = P .. "ox:active:" .. job_type
local held = call("HLEN", P .. "ox:held")
if held + tonumber(ARGV[4]) ~= call("SCARD", P .. "jobs:active") then -- else there is nothing to find
  for _, id in ipairs(call("SDIFF", ours, P .. "jobs:active")) do
    local holder = call("GET", P .. "jobs:lock:" .. id)
    if holder and holder == call("HGET", P .. "ox:job:" .. id, "pb") then
      call("SADD", P .. "jobs:active", id) -- another client removed it while its worker runs it
    else
      call("SREM", ours, id) -- another client recovered it
      call("HDEL", P .. "ox:held", id)
      call("ZADD", P .. "ox:missing", "NX", server_ms(), id) -- or it is in no list: the rescue checks it
    end
  end
end
local truth = call("SCARD", ours)
for at = 5, #ARGV do
  if call("SISMEMBER", P .. "jobs:active", ARGV[at]) == 1 and call("HEXISTS", P .. "ox:held", ARGV[at]) == 0 then
    truth = truth + 1
  end
end
local key, wrong = P .. "ratelimit:concurrent:" .. job_type, P .. "ox:wrong"
local counter = tonumber(call("GET", key) or 0) or "no number"
if counter == truth then
  call("HDEL", wrong, job_type)
  return 0
end
local seen = counter .. ":" .. truth
local alone = call("SCARD", P .. "jobs:active") == call("HLEN", P .. "ox:held")
if alone or type(counter) ~= "number" or call("HGET", wrong, job_type) == seen then
  call("SET", key, string.format("%d", truth))
  call("HDEL", wrong, job_type)
  return 1
end
call("HSET", wrong, job_type, seen)
return 0
