-- Changes the priority of a waiting job; in any other state it applies from the job's next wait on.

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
