-- Notes how jobs run that were lost before: beside other jobs, or alone in their worker. The worker starts them then.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "" (safe to repeat as it is)
--          3 "g" beside others or "a" alone, then for each job: id, token, starts (the `ats` of the claim)
-- Returns  the ids whose lease is gone; the worker must not start them
-- Keeps    only a stall of an attempt alone counts, unless it is the job's first (recover.lua). A start alone clears the
--          losses beside others: if the job is not lost now, it runs beside others again.
-- include: base

remembered()
local gone = {}
for at = 4, #ARGV, 3 do
  local id, starts = ARGV[at], ARGV[at + 2]
  local key = P .. id
  if redis.pcall("GET", key .. ":lock") ~= ARGV[at + 1] or peek(key, "ats") ~= starts then
    gone[#gone + 1] = id
  elseif ARGV[3] == "a" then
    call("HDEL", key, "ox:beside", "ox:shared")
  else
    call("HSET", key, "ox:beside", "g" .. starts)
  end
end
return gone
