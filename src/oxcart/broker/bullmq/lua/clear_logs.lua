-- Drops log lines of a job.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 id, 4 how many of the newest lines to keep
-- Returns  1, or -1 no such job
-- include: base

remembered()
if call("EXISTS", P .. ARGV[3]) == 0 then
  return -1
end
local key = P .. ARGV[3] .. ":logs"
if tonumber(ARGV[4]) > 0 then
  call("LTRIM", key, -tonumber(ARGV[4]), -1)
else
  call("UNLINK", key)
end
return 1
