-- Keeps a stalled check from recovering jobs of healthy workers after an outage. The marks of a check (`stalled`)
-- expire with the sign of life of a worker, so that no check of any client finds one after an outage. `ox:away` shows
-- that a check has seen such a gap: the marks made then stay until the next check, however late that is. It holds how
-- many checks in a row found no sign of life, and the ms for which the last of them waits.
-- include: signs

-- Extends the sign of life and the marks with it; returns whether the sign had not expired.
local function stay_alive(prefix, silence)
  local kept = prolong_sign(prefix, silence)
  if kept and call("EXISTS", prefix .. "ox:away") == 0 then
    call("PEXPIRE", prefix .. "stalled", kept)
  end
  return kept ~= nil
end

-- Returns whether a check must wait until workers have renewed: no sign of life was found and jobs are active. At most
-- twice in a row: workers that run only now and then would otherwise never recover a job.
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

-- Returns for how many ms a check waits that found no sign of life; 0 if none waits.
local function grace_of(prefix)
  return tonumber(string.match(call("GET", prefix .. "ox:away") or "", "%d+$")) or 0
end
