-- Writes a job's progress.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 id, 4 type, 5 progress as JSON
-- Returns  1, or -1 no such job
-- Events   `progress`
-- include: base

local kept = remembered()
if kept then
  return kept[1]
end
if call("EXISTS", P .. "jobs:data:" .. ARGV[3]) == 0 then
  return -1
end
call("SET", P .. "jobs:progress:" .. ARGV[3], ARGV[5])
emit(ARGV[4], "progress", ARGV[3], "data", ARGV[5])
return remember({ 1 })[1]
