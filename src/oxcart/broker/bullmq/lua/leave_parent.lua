-- Detaches a child from its parent: the parent no longer waits for it, and the child forgets the parent.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 id of the child
-- Returns  1 done, 0 no parent waits for it, -1 no such job, -5 its parent is gone
-- Events   `waiting` of a parent that waited for nothing else
-- include: base gate insert removal

local answer = remembered()
if answer then
  return answer[1]
end
local key = P .. ARGV[3]
if call("EXISTS", key) == 0 then
  return -1
end
local parent_key = call("HGET", key, "parentKey")
if not parent_key or parent_key == "" then
  return 0
end
if call("EXISTS", parent_key) == 0 then
  return -5
end
if call("SISMEMBER", parent_key .. ":dependencies", key) == 0 then
  return 0
end
detach_child(parent_key, key)
call("HDEL", key, "parentKey", "parent")
return remember({ 1 })[1]
