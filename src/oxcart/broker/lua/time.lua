-- The time by which a call decides what is due, expired or stalled (docs/decisions/62): the server's, read once.

local known_ms

-- Ms since 1970 by the server's clock, as text: the same for the whole call.
local function server_ms()
  if not known_ms then
    local now = call("TIME")
    local micros = now[2]
    if #micros < 6 then
      micros = string.rep("0", 6 - #micros) .. micros
    end
    known_ms = now[1] .. string.sub(micros, 1, 3) -- text only: formatting a number costs as much as the TIME
  end
  return known_ms
end

-- Returns the time that the caller passes, which only tests do, else the server's; as text.
local function time_of(given)
  return given ~= "" and given or server_ms()
end
