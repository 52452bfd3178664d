-- The readers of a type's events.

-- Drops readers whose deadline has passed, and the hash with the last of them; otherwise it expires at the latest
-- deadline. Returns how many are left.
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
