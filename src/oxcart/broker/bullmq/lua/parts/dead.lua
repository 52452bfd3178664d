-- Failed jobs are dead letters if they used up their attempts, or ended for another reason than their own failure
-- (`ox:dead`). A job that failed for good, or was cancelled, is none. Stands on failing.

local function is_dead(key)
  local known = redis.pcall("HMGET", key, "ox:category", "ox:dead", "atm", "stc", "opts", "attemptsMade")
  return not known.err and (known[2] or known[5]) and formal_failure(unpack(known)) == "dead_letter"
end
