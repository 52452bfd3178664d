-- Which failed jobs are dead letters: those that used up their attempts, or died of something else than their own
-- failure (`ox:dead` says of what). One that failed for good, or was cancelled, is none. Stands on failing.

local function is_dead(key)
  local known = redis.pcall("HMGET", key, "ox:category", "ox:dead", "atm", "stc", "opts", "attemptsMade")
  return not known.err and (known[2] or known[5]) and formal_failure(unpack(known)) == "dead_letter"
end
