-- What keeps a check from taking jobs of healthy workers after an outage. `ox:away` counts the checks in a row that have
-- found no sign of a worker.
-- include: signs

-- Whether a check has to wait until workers have renewed, for there was no sign of a worker and jobs are active. Twice in a
-- row and no more: workers that come only now and then would never check.
local function must_wait(silence)
  if prolong_sign(P, silence) then
    return false
  end
  give_sign(P, silence)
  return call("EXISTS", P .. "jobs:active") == 1 and call("INCR", P .. "ox:away") <= 2
end
