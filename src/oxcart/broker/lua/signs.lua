-- The sign of life of a queue's workers. `ox:alive` expires after as many ms as its value: after that silence the
-- server, or every worker, counts as having been away. Among leases of different lengths the
-- shortest counts.

-- Extends the sign without new memory; returns its ms, or nil if it has expired.
local function prolong_sign(prefix, silence)
  local known = tonumber(call("GET", prefix .. "ox:alive") or nil)
  if not known then
    return nil
  end
  if tonumber(silence) < known then
    known = tonumber(silence)
    call("SET", prefix .. "ox:alive", silence)
  end
  call("PEXPIRE", prefix .. "ox:alive", known)
  return known
end

local function give_sign(prefix, silence)
  call("SET", prefix .. "ox:alive", silence, "PX", silence)
end
