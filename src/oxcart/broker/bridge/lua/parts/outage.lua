-- Keeps a check from recovering jobs of healthy workers after an outage. `ox:away` counts the checks in a row that
-- found no sign of life.
-- include: signs

-- Returns whether a check must wait until workers have renewed: no sign of life was found and jobs are active. At most
-- twice in a row: workers that run only now and then would otherwise never check.
local function must_wait(silence)
  if prolong_sign(P, silence) then
    return false
  end
  give_sign(P, silence)
  return call("EXISTS", P .. "jobs:active") == 1 and call("INCR", P .. "ox:away") <= 2
end
