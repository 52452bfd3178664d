-- Counts the starts of a job in its record.

-- Returns a record with one run more, or nil if the number is not at its known offset: then the record was rewritten.
-- Never decoded: see the module codec.
local WHOLE = -3 -- of an unreadable record: it stays as it is

local function counted(raw, position, by)
  if position == WHOLE then
    return raw, 0
  end
  if position < 0 then
    local _, brace = string.find(raw, "^%s*{")
    if not brace then
      return nil
    end
    local comma = string.find(raw, "^%s*}", brace + 1) and "" or ","
    return string.format('{"attempts":%d%s%s', by, comma, string.sub(raw, brace + 1)), by
  end
  if not string.find(string.sub(raw, math.max(1, position - 40), position), '"attempts"%s*:%s*$') then
    return nil
  end
  local digits = string.match(raw, "^%d+", position + 1)
  if not digits then
    return nil
  end
  local number = math.max(0, tonumber(digits) + by)
  return string.sub(raw, 1, position) .. string.format("%d", number) .. string.sub(raw, position + #digits + 1),
    number
end
