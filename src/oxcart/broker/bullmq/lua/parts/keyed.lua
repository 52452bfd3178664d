-- Idempotency keys: one job per name and key, until the key expires.

-- Returns the job that owns a key, or nil: then this job owns it from now on. A key whose job is gone has no owner.
local function key_owner(prefix, id, name, flags, extras)
  local key
  for i = 1, #extras, 2 do
    if extras[i] == "ox:idem" then
      key = prefix .. "ox:idem:" .. #name .. ":" .. name .. ":" .. extras[i + 1]
    end
  end
  local life = string.match(flags, "I(%d+)")
  local owner = call("SET", key, id, "NX", "GET", "PX", life)
  if not owner then
    return nil
  end
  if call("EXISTS", prefix .. owner) == 1 then
    return owner
  end
  call("SET", key, id, "PX", life)
  return nil
end
