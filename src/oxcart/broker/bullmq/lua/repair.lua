-- Repairs jobs that wait for others without a gate between them: one step.
--
-- A gate can be lost: its hidden queue was emptied, or a peer removed it together with its job. Without a repair its
-- dependents would wait for ever.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 now or "" (time.lua), 4 index of the first waiting job to check, 5 how many to check
-- Returns  { how many dependencies were repaired, the next index, 0 at the end }
-- Events   those of jobs that are released or end
-- Keeps    a dependency with a gate is left alone. Of a job with many dependencies a random sample is checked
-- include: base gate insert store attempts parent removal failing gates

remembered()
local SOME, ROOM = 20, 250
local now, from, step = tonumber(time_of(ARGV[3])), tonumber(ARGV[4]), tonumber(ARGV[5])
local known_gates = call("SMEMBERS", P .. "ox:gates")

-- Returns a job's queue from its key: an id may contain colons, names of queues do not.
local function place_of(key)
  for _, hidden in ipairs(known_gates) do
    local prefix = string.sub(hidden .. ":", 1, -1 - #HIDDEN) .. ":"
    if string.sub(key, 1, #prefix) == prefix then
      return prefix, string.sub(key, #prefix + 1)
    end
  end
  return split_key(key)
end

local function mend(key, of)
  local prefix, id = place_of(of)
  local gate = hidden_of(prefix) .. gate_id(id)
  if call("HEXISTS", gate, "d:" .. key) == 1 then
    return 0
  end
  local any = call("HGET", key, "ox:any")
  local kind = any and string.find(any, cjson.encode(of), 1, true) and "y" or "a"
  local outcome, value = ended_as(prefix, id, gate)
  if outcome then
    meet(key, kind, of, outcome, value, now)
  else
    attach(prefix, id, key, kind, now)
  end
  return 1
end

local mended = 0
local ids = call("ZRANGE", P .. "waiting-children", from, from + step - 1)
for _, id in ipairs(ids) do
  local key = P .. id
  if peek(key, "ox:depth") and not peek(key, "ats") then -- a job that has started can only wait for children
    for _, of in ipairs(call("SRANDMEMBER", key .. ":dependencies", SOME)) do
      local fine, many = pcall(mend, key, of)
      mended = mended + (fine and many or 0)
    end
  end
end
settle_opened(now, ROOM)
return { mended, #ids == step and from + step or 0 }
