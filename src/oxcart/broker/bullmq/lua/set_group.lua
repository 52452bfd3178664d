-- Changes the settings of one group, or those of all groups.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 "g" for one group, "a" for all, 4 the group or "", 5 how many at once, 6 how many per minute
--          (0 for unlimited), 7 weight (one group only), 8 1 to pause it, 0 to resume it (one group only), 9 now or ""
--          (time.lua). 5 to 8 may be "" to keep the setting, or "-" to let that of all groups apply
-- Returns  1
-- Keeps    jobs that already run, or that are let through, count
-- include: base gate insert buckets groups

remembered()
limit_at(P)
local known = call("HGET", KEYS[1], "ox:limits")
local rules = known and rules_of(known) or { t = {}, k = { 0, 0 } }
rules.g = type(rules.g) == "table" and rules.g or { 0, 0, 0 }
local group, now = ARGV[4], tonumber(time_of(ARGV[9]))
local bucket

-- Returns a changed setting, or the present one.
local function changed(text, present)
  if text == "" then
    return present
  end
  return tonumber(text)
end

if ARGV[3] == "a" then
  rules.g[1], rules.g[2] = changed(ARGV[5], rules.g[1]) or 0, changed(ARGV[6], rules.g[2]) or 0
else
  bucket = group_bucket(group)
  local fine, own = pcall(cjson.decode, call("HGET", P .. "ox:groups", group) or "{}")
  own = fine and type(own) == "table" and own or {}
  own.c, own.r = changed(ARGV[5], own.c), changed(ARGV[6], own.r)
  own.w, own.p = changed(ARGV[7], own.w), changed(ARGV[8], own.p)
  own.p = own.p == 1 and 1 or nil
  if next(own) then
    call("HSET", P .. "ox:groups", group, cjson.encode(own))
  else
    call("HDEL", P .. "ox:groups", group)
  end
  rules.g[3] = call("EXISTS", P .. "ox:groups")
end
call("HSET", KEYS[1], "ox:limits", cjson.encode(rules))

local gate = read_gate(P)
count_places_anew(rules, gate, bucket)
if bucket then
  call("ZREM", OPENING, bucket)
  if count_in(PARKED, bucket) > 0 then
    enter_turns(rules, bucket)
  end
else
  for _, full in ipairs(call("ZRANGE", OPENING, 0, -1)) do
    if string.sub(full, 1, 2) == "g:" then
      call("ZADD", OPENING, string.format("%.0f", now), full)
    end
  end
end
let_through(gate, rules, now, WINDOW)
return 1
