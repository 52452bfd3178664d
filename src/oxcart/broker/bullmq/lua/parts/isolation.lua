-- Judges whether a lost job may have ended its worker itself.

-- Returns whether the stall of a job does not count: it was lost before, and its last attempt waited in its worker
-- ("w") or ran beside other jobs ("g"), as isolate.lua and the claim noted. A note of an earlier attempt says nothing:
-- a worker that does not isolate claimed the job since. An attempt beside others is counted in `ox:shared`, and the
-- next attempt runs alone.
local function excuse(key, note, starts)
  if not note or not starts or string.sub(note, 2) ~= starts then
    return false
  end
  if string.sub(note, 1, 1) == "g" and type(redis.pcall("HINCRBY", key, "ox:shared", 1)) ~= "number" then
    call("HSET", key, "ox:shared", 1)
  end
  return true
end
