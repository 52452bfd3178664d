-- Returns the formal state of a failed job (model/state.py).
--
-- Decided from fields of its hash: ox:category, ox:dead, atm, stc, opts and attemptsMade. A job that failed for good
-- or was cancelled is no dead letter. A job that used up its attempts, or ended for a reason other than its own
-- failure, is one.

local function formal_failure(category, dead, ended, stalls, text, legacy)
  if category == "cancelled" then
    return "cancelled"
  end
  local fine, opts = pcall(cjson.decode, text or "")
  local attempts = fine and type(opts) == "table" and tonumber(opts.attempts) or 1
  local used = attempts_made(ended, legacy) + (count_of(stalls) or 0)
  if dead or (used >= math.max(attempts, 1) and category ~= "permanent") then
    return "dead_letter"
  end
  return "failed"
end
