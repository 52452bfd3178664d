-- Extends leases.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "" (safe to repeat as it is)
--          3 lock ms, then for each lease: id, token, starts ("" or the `ats` of the claim)
-- Returns  the ids whose lease was refused
-- Keeps    a lease that ran out is revived only while the job is active and its `ats` is that of our
--          claim; a lease of another worker is never touched
-- include: base

remembered(true)
local refused, held = {}, {}
for at = 4, #ARGV, 3 do
  local id, token, starts = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local key = P .. id
  local holder = redis.pcall("GET", key .. ":lock") -- a table if the key is no string: not our token
  if holder == token then
    -- Needs no memory, so a full server still renews.
    call("PEXPIRE", key .. ":lock", ARGV[3])
    held[#held + 1] = id
  elseif not holder and starts ~= "" and peek(key, "ats") == starts and call("LPOS", P .. "active", id) then
    if redis.pcall("SET", key .. ":lock", token, "PX", ARGV[3]).ok then
      held[#held + 1] = id
    end
  else
    refused[#refused + 1] = id
  end
end
for from = 1, #held, 5000 do
  call("SREM", P .. "stalled", unpack(held, from, math.min(from + 4999, #held)))
end
return refused
