-- Changes the priority of a waiting job; in any other state it applies from the job's next wait on.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 id, 4 priority, 5 "L" to put it in front of its equals
-- Returns  1, or -1 no such job
-- include: base gate insert priority

local answer = remembered()
if answer then
  return answer[1]
end
if call("EXISTS", P .. ARGV[3]) == 0 then
  return -1
end
reprioritise(ARGV[3], tonumber(ARGV[4]), ARGV[5] == "L")
remember({ 1 })
return 1
