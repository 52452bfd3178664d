-- Returns how long the rate limit blocks the next start.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "" (only reads), 3 the limit of a worker, or ""
-- Returns  ms, 0 if it does not. The queue's own limit comes first. Without any limit only a queue that is held
--          blocks.
-- include: base gate

local max = tonumber(call("HGET", P .. "meta", "max") or ARGV[3]) or HELD
local used = tonumber(call("GET", P .. "limiter") or 0) or 0
return used >= max and math.max(0, call("PTTL", P .. "limiter")) or 0
