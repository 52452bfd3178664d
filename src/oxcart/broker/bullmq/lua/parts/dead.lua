-- Decides whether a failed job is a dead letter: it used up its attempts, or ended for a reason other than its own
-- failure (`ox:dead`). A job that failed for good, or was cancelled, is none. Needs failing.

-- With `permanent`, a job that failed for good counts as well.
local function is_dead(key, permanent)
  local known = redis.pcall("HMGET", key, "ox:category", "ox:dead", "atm", "stc", "opts", "attemptsMade")
  if known.err or not (known[2] or known[5]) then
    return false
  end
  local state = formal_failure(unpack(known))
  return state == "dead_letter" or (permanent and state == "failed")
end
