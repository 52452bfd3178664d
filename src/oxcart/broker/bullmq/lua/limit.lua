-- Sets or removes the limit of a job type, or the limit of every key.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 "t" or "k", 4 the type or "", 5 how many at once, 6 how many per minute (0 for unlimited;
--          both 0 remove the limit), 7 now or "" (time.lua), 8 "1" to shrink the limit of a type in a partition: like
--          shrink.lua, but at least to 1, because 0 is no limit
-- Returns  how many at once it left
-- Keeps    jobs that already run count. Buckets that hold jobs back are checked next
-- include: base gate insert buckets groups limiting lanes

remembered()
limit_at(P)
local kind, name = ARGV[3], ARGV[4]
local rule = { tonumber(ARGV[5]), tonumber(ARGV[6]) }
local known = call("HGET", KEYS[1], "ox:limits")
local rules = known and rules_of(known) or { t = {}, k = { 0, 0 } }
local first, last
local known_rule = kind == "t" and type(rules.t[name]) == "table" and rules.t[name] or {}
local before = { tonumber(known_rule[1]) or 0, tonumber(known_rule[2]) or 0 }
local running = 0
if kind == "t" then
  rules.t[name] = (rule[1] > 0 or rule[2] > 0) and rule or nil
  first, last = "t:" .. name .. "\n", "t:" .. name .. "\011"
else
  rules.k = rule
  first, last = "k:", "k;"
end

-- The jobs in `active` occupy the places.
call("ZREMRANGEBYLEX", PLACES, "[" .. first, "(" .. last)
if rule[1] > 0 then
  local prefixes = { P }
  for _, lane in ipairs(call("SMEMBERS", P .. "ox:lanes:busy")) do
    prefixes[#prefixes + 1] = lane_prefix(P, lane)
  end
  for _, prefix in ipairs(prefixes) do
    for _, id in ipairs(call("LRANGE", prefix .. "active", 0, -1)) do
      local job = redis.pcall("HMGET", prefix .. id, "name", "ox:limit")
      if kind == "t" and job[1] == name then
        call("ZADD", PLACES, 0, "t:" .. name .. "\n" .. name_of(prefix, id))
        running = running + 1
      elseif kind == "k" and job[2] and not string.find(job[2], "%c") then
        call("ZADD", PLACES, 0, "k:" .. job[2] .. "\n" .. name_of(prefix, id))
      end
    end
  end
end
if ARGV[8] == "1" and rule[1] > 0 then
  local bound = before[1] > 0 and before[1] or running
  if bound <= rule[1] then
    rule[1] = math.max(1, bound)
  else
    rule[1] = math.max(rule[1], math.min(running, bound))
  end
  if before[2] > 0 and rule[2] > 0 then
    rule[2] = math.min(before[2], rule[2])
  end
end
call("HSET", KEYS[1], "ox:limits", cjson.encode(rules))
for _, bucket in ipairs(call("ZRANGE", OPENING, 0, -1)) do
  if bucket == kind .. ":" .. name or (kind == "k" and string.sub(bucket, 1, 2) == "k:") then
    call("ZADD", OPENING, time_of(ARGV[7]), bucket)
  end
end
open_due(read_gate(P), tonumber(time_of(ARGV[7])), 20)
return rule[1]
