-- Renews leases, and with them the heartbeat of their worker: a handler may block the worker's process.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 now or "" (time.lua), 4 lock ms, then per lease: id, worker id, starts or ""
-- Returns  the ids that were refused
-- Keeps    an expired lease is revived only while the job is active and no other worker started it; a
--          server without memory still renews, otherwise all workers would look dead when it has memory again
-- include: base

remembered(true)
local refused, beaten = {}, {}
for at = 5, #ARGV, 3 do
  local id, worker, starts = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local lock = P .. "jobs:lock:" .. id
  local holder = call("GET", lock)
  local run = call("HMGET", P .. "ox:job:" .. id, "ats", "pb")
  local ours = (starts == "" and holder) or (run[1] == starts and run[2] == worker)
  if ours and holder == worker then
    call("PEXPIRE", lock, ARGV[4])
  elseif ours and not holder and call("SISMEMBER", P .. "jobs:active", id) == 1 then
    redis.pcall("SET", lock, worker, "PX", ARGV[4]) -- if that takes too much memory, the next renewal does it
  else
    refused[#refused + 1] = id
    worker = nil
  end
  if worker and not beaten[worker] then
    beaten[worker] = true
    local beat = P .. "workers:heartbeat:" .. worker
    if call("SISMEMBER", P .. "workers:active", worker) == 1
      and redis.pcall("SET", beat, time_of(ARGV[3]), "EX", 30).err then
      call("EXPIRE", beat, 30)
    end
  end
end
return refused
