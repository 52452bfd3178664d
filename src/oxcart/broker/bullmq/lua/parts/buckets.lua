-- Buckets: what the limits per job type and key, and the groups, count jobs by (decisions 56 and 121). A bucket is
-- `t:` and a job's name, `k:` and its key, or `g:` and its group.
--
-- A queue and its lanes share them: `AT` is the key prefix of the base queue. These sets name a job by its id, and a
-- job in a lane by the lane's name and its id (`name_of`).

-- The rules in `ox:limits`; none if they cannot be read.
local function rules_of(text)
  local fine, rules = pcall(cjson.decode, text)
  if fine and type(rules) == "table" and type(rules.t) == "table" and type(rules.k) == "table" then
    return rules
  end
  return { t = {}, k = { 0, 0 } }
end

local AT, PLACES, PARKED, OPENING
local function limit_at(base)
  AT = base
  PLACES, PARKED, OPENING = AT .. "ox:held", AT .. "ox:parked", AT .. "ox:opening"
end

local function name_of(prefix, id)
  return prefix == AT and id or "\1" .. string.sub(prefix, #AT + 1, -2) .. "\1" .. id
end

-- Returns the key prefix of a job's queue or lane, and its id.
local function job_of(name)
  if string.byte(name) ~= 1 then
    return AT, name
  end
  local lane, id = string.match(name, "^\1([^\1]*)\1(.*)$")
  return string.sub(AT, 1, -2) .. "@" .. lane .. ":", id
end

-- A job held back is due in a day: no peer takes it before it is admitted.
local DAY = 86400000
-- Ms after which a full bucket is checked again: a worker may be lost.
local LOOK = 5000
local MINUTE = 60000
-- Most jobs that one call admits because they are due, and most that it holds back: each costs five commands.
local LET_IN, HOLD_BACK = 100, 100

-- Returns the rule of a group: how many at once and per minute, 0 for unlimited; its weight; whether it is paused. A
-- group's own settings come before those of all groups.
local group_rules = {}
local function rule_of_group(rules, group)
  local rule = group_rules[group]
  if not rule then
    local all = type(rules.g) == "table" and rules.g or { 0, 0, 0 }
    rule = { tonumber(all[1]) or 0, tonumber(all[2]) or 0, 1, false }
    local text = all[3] == 1 and call("HGET", AT .. "ox:groups", group)
    local fine, own = false, nil
    if text then
      fine, own = pcall(cjson.decode, text)
    end
    if fine and type(own) == "table" then
      rule[1], rule[2] = tonumber(own.c) or rule[1], tonumber(own.r) or rule[2]
      rule[3] = (tonumber(own.w) or 0) > 0 and tonumber(own.w) or 1
      rule[4] = own.p == 1
    end
    group_rules[group] = rule
  end
  return rule
end

-- Returns the rule of a bucket: how many at once and per minute, 0 for unlimited; nil for no rule.
local function rule_of_bucket(rules, bucket)
  local rule = string.sub(bucket, 1, 2) == "t:" and rules.t[string.sub(bucket, 3)] or nil
  if string.sub(bucket, 1, 2) == "k:" then
    rule = rules.k
  elseif string.sub(bucket, 1, 2) == "g:" then
    rule = rule_of_group(rules, string.sub(bucket, 3))
  end
  if rule and rule[1] == 0 and rule[2] == 0 then
    return nil
  end
  return rule
end

-- Returns the buckets of a job's type and key that have rules.
local function buckets_of(rules, name, key)
  local found = {}
  if name and rules.t[name] then
    found[1] = "t:" .. name
  end
  if key and rule_of_bucket(rules, "k:") and not string.find(key, "%c") then
    found[#found + 1] = "k:" .. key
  end
  return found
end

local function count_in(set, bucket)
  return call("ZLEXCOUNT", set, "[" .. bucket .. "\n", "(" .. bucket .. "\011")
end

-- Returns whether a peer's worker started a job that its group let through, and delayed it: a retry with a backoff. The
-- peer's scripts promote it without a look at its group, so it keeps its place.
local function is_delayed_by_peer(bucket, prefix, id)
  if not call("ZSCORE", prefix .. "delayed", id) then
    return false
  end
  local job = redis.pcall("HMGET", prefix .. id, "ox:turn", "ox:through", "ats")
  return job[2] and job[2] ~= (job[3] or "0")
    and not (job[1] and call("ZSCORE", PARKED, bucket .. "\n" .. job[1] .. "\n" .. id))
end

-- Returns whether a job that its group let through waits for a worker.
local function is_let_through(bucket, prefix, id)
  if string.sub(bucket, 1, 2) ~= "g:" then
    return false
  end
  return call("LPOS", prefix .. "wait", id) or call("LPOS", prefix .. "paused", id)
    or call("ZSCORE", prefix .. "prioritized", id) or is_delayed_by_peer(bucket, prefix, id)
end

-- Drops places of jobs that neither have a lease nor are active. A job whose lease expired keeps its place while it is
-- active, because its worker may renew it.
local function drop_lost_holders(bucket)
  local members = call("ZRANGEBYLEX", PLACES, "[" .. bucket .. "\n", "(" .. bucket .. "\011", "LIMIT", 0, 1000)
  local locks = {}
  local prefixes, ids = {}, {}
  for i = 1, #members do
    prefixes[i], ids[i] = job_of(string.sub(members[i], #bucket + 2))
    locks[i] = prefixes[i] .. ids[i] .. ":lock"
  end
  local holders = #locks > 0 and call("MGET", unpack(locks)) or {}
  for i = 1, #members do
    if not holders[i] and not call("LPOS", prefixes[i] .. "active", ids[i])
        and not is_let_through(bucket, prefixes[i], ids[i]) then
      call("ZREM", PLACES, members[i])
    end
  end
end

-- Returns how many more jobs of a bucket may start now; and the ms until that changes by itself, if a minute is full.
local function room_in(bucket, rule, look)
  local room, wait = math.huge, nil
  if rule[1] > 0 then
    room = rule[1] - count_in(PLACES, bucket)
    if room <= 0 and look then
      drop_lost_holders(bucket)
      room = rule[1] - count_in(PLACES, bucket)
    end
  end
  if rule[2] > 0 then
    local key = AT .. "ox:rate:" .. bucket
    local left = rule[2] - (tonumber(call("GET", key)) or 0)
    if left <= 0 then
      wait = call("PTTL", key)
      if wait < 0 then -- a count without an end
        call("DEL", key)
        left, wait = rule[2], nil
      end
    end
    room = math.min(room, left)
  end
  return room, wait
end
