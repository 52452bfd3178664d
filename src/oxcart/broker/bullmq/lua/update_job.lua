-- Changes our fields and the priority of a job that has not ended.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 id, 4 priority or "", then fields as name, value; "" removes one
-- Returns  1, or -1 no such job, -3 it has ended
-- include: base gate insert priority

local answer = remembered()
if answer then
  return answer[1]
end
local id = ARGV[3]
local key = P .. id
if call("EXISTS", key) == 0 then
  return -1
end
if call("ZSCORE", P .. "completed", id) or call("ZSCORE", P .. "failed", id) then
  return -3
end
for i = 5, #ARGV, 2 do
  if ARGV[i + 1] == "" then
    call("HDEL", key, ARGV[i])
  else
    call("HSET", key, ARGV[i], ARGV[i + 1])
  end
end
if ARGV[4] ~= "" then
  reprioritise(id, tonumber(ARGV[4]), false)
end
remember({ 1 })
return 1
