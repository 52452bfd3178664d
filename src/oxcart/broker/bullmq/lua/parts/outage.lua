-- What keeps a stalled check from taking jobs of healthy workers after an outage. The marks of a check (`stalled`) run
-- out with the sign of life, so that no check of any client finds one after an outage. `ox:away` says that a check has
-- seen such a gap: the marks made then stay until the next check, however long that takes to come.
-- include: signs

-- Prolongs the sign of life and the marks with it; returns whether the sign was still there.
local function stay_alive(prefix, silence)
  local kept = prolong_sign(prefix, silence)
  if kept and call("EXISTS", prefix .. "ox:away") == 0 then
    call("PEXPIRE", prefix .. "stalled", kept)
  end
  return kept ~= nil
end
