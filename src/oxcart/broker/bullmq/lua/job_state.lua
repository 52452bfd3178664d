-- Reads the state of jobs.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", then ids
-- Returns  one state per id, in the words of peers: completed, failed, delayed, prioritized, active,
--          waiting (also while the queue is paused), waiting-children, unknown; "elsewhere" if it may be in one
--          of the queue's lanes
-- include: base

local sets = { "completed", "failed", "delayed", "prioritized" }
local states, has_lanes = {}, nil
for i = 3, #ARGV do
  local id = ARGV[i]
  local found
  for _, state in ipairs(sets) do
    if call("ZSCORE", P .. state, id) then
      found = state
      break
    end
  end
  if not found and call("LPOS", P .. "active", id) then
    found = "active"
  end
  if not found and (call("LPOS", P .. "wait", id) or call("LPOS", P .. "paused", id)) then
    found = "waiting"
  end
  if not found and call("ZSCORE", P .. "waiting-children", id) then
    found = "waiting-children"
  end
  if not found then
    has_lanes = has_lanes or call("HGET", KEYS[1], "ox:lanes") or "-"
    found = has_lanes == "+" and "elsewhere" or "unknown"
  end
  states[#states + 1] = found
end
return states
