-- The readers of a type's events.

-- Forgets those whose time is over, and all of it with the last; it goes by itself when that one's time is over.
-- Returns how many are left.
local function live_readers(key, now)
  local flat, left, last = call("HGETALL", key), 0, 0
  for i = 1, #flat, 2 do
    if string.sub(flat[i], 1, 7) == "reader:" then
      local till = tonumber(flat[i + 1])
      if till > now then
        left, last = left + 1, math.max(last, till)
      else
        call("HDEL", key, flat[i])
      end
    end
  end
  if left == 0 then
    call("DEL", key)
  else
    call("PEXPIRE", key, string.format("%.0f", last - now))
  end
  return left
end
