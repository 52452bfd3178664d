-- Appends lines to a job's log.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 id, 4 how many lines are kept ("" all), then the lines
-- Returns  how many lines there are now, or -1 no such job
-- include: base

local answer = remembered()
if answer then
  return answer[1]
end
local key = P .. ARGV[3]
if call("EXISTS", key) == 0 then
  return -1
end
local length = 0
for from = 5, #ARGV, 5000 do
  length = call("RPUSH", key .. ":logs", unpack(ARGV, from, math.min(from + 4999, #ARGV)))
end
if ARGV[4] ~= "" then
  local most = tonumber(ARGV[4])
  call("LTRIM", key .. ":logs", -most, -1)
  length = math.min(length, most)
end
remember({ length })
return length
