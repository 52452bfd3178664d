-- Promotes delayed jobs now.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 type, then per job: id, its facts
-- Returns  per job 1, -1 no such job, -3 not delayed
-- Events   `waiting` per job
-- include: base lanes

local kept = remembered()
if kept then
  return kept
end
local codes = {}
for at = 4, #ARGV, 2 do
  local id, packed = ARGV[at], ARGV[at + 1]
  local code = 1
  if call("EXISTS", P .. "jobs:data:" .. id) == 0 then
    code = -1
  elseif call("ZREM", P .. "jobs:delayed", id) == 0 then
    code = -3
  else
    call("HSET", P .. "ox:facts", id, packed)
    make_ready(id, cmsgpack.unpack(packed), false)
    note_ready(id, server_ms())
    emit(ARGV[3], "waiting", id, "prev", "delayed")
  end
  codes[#codes + 1] = code
end
return remember(codes)
