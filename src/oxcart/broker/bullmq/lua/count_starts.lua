-- Counts starts in the window of a limit that happened elsewhere: in the other partitions of a queue that is resized.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 the type, or "" for the limit of the queue, 4 how many, 5 ms that are left of
--          the window where it began
-- Returns  1
-- Keeps    a window that is open here keeps its end
-- include: base

local answer = remembered()
if answer then
  return answer[1]
end
local key = P .. (ARGV[3] == "" and "limiter" or "ox:rate:t:" .. ARGV[3])
call("INCRBY", key, ARGV[4])
if call("PTTL", key) < 0 then
  call("PEXPIRE", key, ARGV[5])
end
remember({ 1 })
return 1
