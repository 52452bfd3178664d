-- Another priority for a job that waits; for one in another state it counts from its next wait on.

local function reprioritise(id, priority, front)
  local gate = read_gate(P)
  if call("ZREM", P .. "prioritized", id) == 1 or call("LREM", gate.target, -1, id) == 1 then
    if front and priority > 0 then
      insert_front(P, gate, id, priority)
    else
      insert_waiting(P, gate, id, priority, front)
    end
  end
  call("HSET", P .. id, "priority", priority)
end
