-- Replaces values that another client may change at the same time.

-- Replaces a hash field ("h") or a string ("s") if it still holds the value that was read. Returns 1
-- if it now holds the new one, else 0.
local function swap(kind, key, field, old, new)
  local held
  if kind == "h" then
    held = redis.pcall("HGET", key, field)
  else
    held = redis.pcall("GET", key)
  end
  if held == new then
    return 1
  elseif held ~= old then
    return 0
  elseif kind == "h" then
    call("HSET", key, field, new)
  else
    call("SET", key, new, "KEEPTTL")
  end
  return 1
end
