-- Gives a waiting job another priority; for a job in another state it counts from its next wait on.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 id, 4 priority, 5 "L" to put it in front of its equals
-- Returns  1, or -1 no such job
-- include: base gate insert

local answer = remembered()
if answer then
  return answer[1]
end
local id, priority, front = ARGV[3], tonumber(ARGV[4]), ARGV[5] == "L"
local key = P .. id
if call("EXISTS", key) == 0 then
  return -1
end
local gate = read_gate(P)
if call("ZREM", P .. "prioritized", id) == 1 or call("LREM", gate.target, -1, id) == 1 then
  if front and priority > 0 then
    insert_front(P, gate, id, priority)
  else
    insert_waiting(P, gate, id, priority, front)
  end
end
call("HSET", key, "priority", ARGV[4])
remember({ 1 })
return 1
