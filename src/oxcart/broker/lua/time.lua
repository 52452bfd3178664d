-- The time by which a call judges what is due, expired or stalled (docs/decisions/62): the server's, read once.

local known_ms

-- Ms since 1970 by the server's clock, as text: the same for the whole call.
local function server_ms()
  if not known_ms then
    local now = call("TIME")
    known_ms = string.format("%.0f", now[1] * 1000 + math.floor(now[2] / 1000))
  end
  return known_ms
end

-- The time that the caller passes, which only tests do, else the server's; as text.
local function time_of(given)
  return given ~= "" and given or server_ms()
end
