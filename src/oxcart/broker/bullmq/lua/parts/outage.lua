-- What keeps a stalled check from taking jobs of healthy workers after an outage. The marks of a check (`stalled`) run
-- out with the sign of a worker, so that no check of any client finds one after an outage. `ox:away` shows that a check has
-- seen such a gap: the marks made then stay until the next check, however long that takes to come. It holds how many
-- checks in a row have found no sign of a worker, and the ms for which the last of them waits.
-- include: signs

-- Prolongs the sign of a worker and the marks with it; returns whether the sign was still there.
local function stay_alive(prefix, silence)
  local kept = prolong_sign(prefix, silence)
  if kept and call("EXISTS", prefix .. "ox:away") == 0 then
    call("PEXPIRE", prefix .. "stalled", kept)
  end
  return kept ~= nil
end

-- Whether a check has to wait until workers have renewed, for there was no sign of a worker and jobs are active. Twice in a
-- row and no more: workers that come only now and then would never take a job back.
local function must_wait(prefix, silence, grace)
  if stay_alive(prefix, silence) then
    return false
  end
  give_sign(prefix, silence)
  local gaps = 1 + (tonumber(string.match(call("GET", prefix .. "ox:away") or "", "^%d+")) or 0)
  if gaps > 2 or call("EXISTS", prefix .. "active") == 0 then
    return false
  end
  call("SET", prefix .. "ox:away", gaps .. ":" .. grace)
  return true
end

-- For how many ms a check waits that has found no sign of a worker; 0 where none waits.
local function grace_of(prefix)
  return tonumber(string.match(call("GET", prefix .. "ox:away") or "", "%d+$")) or 0
end
