-- Makes a scheduler the leader of its namespace, or renews its leadership.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 scheduler id, 4 ms for which it leads, "" to resign
-- Returns  the number of its term, or 0 if another leads
-- Keeps    every new leader has a new term; calls of an old term are refused (fire.lua)
-- include: base

asked_of_slot("SETRANGE", NEVER, 0, "")
local key, me = P .. "scheduler:lock", ARGV[3]
if ARGV[4] == "" then
  if call("GET", key) == me then
    call("DEL", key)
  end
  return 0
end
if call("PTTL", key) > 10 * ARGV[4] then
  call("DEL", key) -- no leader leads for so long: the server's clock was set back
end
if call("SET", key, me, "NX", "PX", ARGV[4]) then
  return call("INCR", P .. "ox:term")
elseif call("GET", key) == me then
  call("PEXPIRE", key, ARGV[4])
  return tonumber(call("GET", P .. "ox:term") or 0)
end
return 0
