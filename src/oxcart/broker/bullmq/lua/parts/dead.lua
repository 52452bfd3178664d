-- Decides whether a failed job is a dead letter: it used up its attempts, or ended for a reason other than its own
-- failure (`ox:dead`). A job that failed for good, or was cancelled, is none. Needs failing.

local function is_dead(key)
  local known = redis.pcall("HMGET", key, "ox:category", "ox:dead", "atm", "stc", "opts", "attemptsMade")
  return not known.err and (known[2] or known[5]) and formal_failure(unpack(known)) == "dead_letter"
end
