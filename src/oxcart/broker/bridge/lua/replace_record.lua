-- Replaces a job's record, unless another client changed it since it was read.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 id, 4 the record as it was read, 5 the new one,
--          6 offset of the number of attempts in it
-- Returns  1, -1 no such job, 0 it was changed meanwhile
-- Keeps    a waiting job stays in its lane, even if its new record has another target
-- include: base

asked_of_slot("SETRANGE", NEVER, 0, "")
local key = P .. "jobs:data:" .. ARGV[3]
local raw = call("GET", key)
if not raw then
  return -1
elseif raw == ARGV[5] then
  return 1
elseif raw ~= ARGV[4] then
  return 0
end
call("SET", key, ARGV[5], "KEEPTTL")
local facts = facts_of(ARGV[3])
if facts then
  facts[6] = tonumber(ARGV[6])
  call("HSET", P .. "ox:facts", ARGV[3], cmsgpack.pack(facts))
end
return 1
