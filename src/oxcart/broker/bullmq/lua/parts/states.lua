-- Finds the state of a job.

-- Returns whether a job is in any list or set of the queue. Searching a list takes the longer the longer it is.
local function is_in_a_state(id)
  for _, state in ipairs({ "completed", "failed", "delayed", "prioritized", "waiting-children" }) do
    if call("ZSCORE", P .. state, id) then
      return true
    end
  end
  for _, state in ipairs({ "active", "wait", "paused" }) do
    if call("LPOS", P .. state, id) then
      return true
    end
  end
  return false
end
