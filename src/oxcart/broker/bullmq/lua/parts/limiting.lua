-- Limits per job type and per key (decision 56). A bucket is `t:` and a job's name, or `k:` and its key.
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

-- Returns the rule of a bucket: how many at once and per minute, 0 for unlimited; nil for no rule.
local function rule_of_bucket(rules, bucket)
  local rule = string.sub(bucket, 1, 2) == "t:" and rules.t[string.sub(bucket, 3)] or nil
  if string.sub(bucket, 1, 2) == "k:" then
    rule = rules.k
  end
  if rule and rule[1] == 0 and rule[2] == 0 then
    return nil
  end
  return rule
end

-- Returns the buckets of a job that have rules.
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
    if not holders[i] and not call("LPOS", prefixes[i] .. "active", ids[i]) then
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

-- Admits at most `most` jobs of a bucket, first held back first. Notes of jobs that are no longer in their place are
-- dropped; if there are very many, the next check continues. `gate` is that of this script's queue.
-- A job enters its new place before it leaves the old one, and its note goes last: a failure in between must not
-- lose it. A job that cannot be moved stays where it is, due in a day, and does not stop the others.
local function let_in(bucket, most, gate)
  local found, notes, gates = {}, {}, { [P] = gate }
  local none_left, many_left = false, false
  local page = most + 1 -- one more than needed shows whether any are left
  for turn = 1, 10 do
    local members = call("ZRANGEBYLEX", PARKED, "[" .. bucket .. "\n", "(" .. bucket .. "\011", "LIMIT", #found, page)
    local looked, stale = 0, {}
    for i = 1, #members do
      if #found == most then
        break
      end
      local place = string.sub(members[i], #bucket + 2, #bucket + 17)
      local prefix, id = job_of(string.sub(members[i], #bucket + 19))
      if tonumber(redis.pcall("ZSCORE", prefix .. "delayed", id) or nil) == tonumber(place) then
        found[#found + 1] = { prefix, id }
        notes[#notes + 1] = members[i]
      else
        stale[#stale + 1] = members[i]
      end
      looked = i
    end
    if #stale > 0 then
      call("ZREM", PARKED, unpack(stale))
    end
    if #members < page and looked == #members then
      none_left = #members > 0 or turn > 1
      break
    elseif #found == most then
      break
    end
    many_left = turn == 10
    page = 200
  end
  local entered = 0
  for i = #found, 1, -1 do -- each goes to the front, so the first is admitted last
    local prefix, id = found[i][1], found[i][2]
    local fine = pcall(function()
      gates[prefix] = gates[prefix] or read_gate(prefix)
      insert_front(prefix, gates[prefix], id, tonumber(peek(prefix .. id, "priority")) or 0)
      call("XADD", prefix .. "events", "*", "event", "waiting", "jobId", id, "prev", "delayed")
      wake_now(prefix, gates[prefix])
    end)
    if fine or is_ready(prefix, id) then
      call("ZREM", prefix .. "delayed", id)
      entered = entered + 1
    end
  end
  if #notes > 0 then
    call("ZREM", PARKED, unpack(notes))
  end
  if none_left then
    call("ZREM", OPENING, bucket)
  elseif many_left then
    call("ZADD", OPENING, 0, bucket)
  end
  return entered
end

-- Checks a bucket that holds jobs back: admits as many as there is room for, at most `most`, and stores when to
-- check again. Returns how many it admitted.
local function look_at_bucket(rules, bucket, gate, now, most)
  local rule = rule_of_bucket(rules, bucket)
  local room, wait = math.huge, nil
  if rule then
    room, wait = room_in(bucket, rule, true)
  end
  local many = room > 0 and let_in(bucket, math.min(room, most), gate) or 0
  if count_in(PARKED, bucket) == 0 then
    call("ZREM", OPENING, bucket)
  else
    local more = room > many and 0 or LOOK
    call("ZADD", OPENING, string.format("%.0f", now + (wait and math.max(wait, 1) or more)), bucket)
  end
  return many
end

-- Checks at most `most` buckets that are due; returns whether there may be more. Without rules and without held back
-- jobs, the limits end.
local function open_due(gate, now, most)
  limit_at(gate.base or P)
  local rules = rules_of(gate.limits)
  local due = call("ZRANGEBYSCORE", OPENING, "-inf", string.format("%.0f", now), "LIMIT", 0, most)
  local left = LET_IN
  for _, bucket in ipairs(due) do
    left = left - look_at_bucket(rules, bucket, gate, now, left)
    if left <= 0 then
      break
    end
  end
  if not next(rules.t) and not rule_of_bucket(rules, "k:") and call("EXISTS", OPENING) == 0 then
    call("HDEL", AT .. "meta", "ox:limits")
  end
  return #due == most or left <= 0
end

-- Removes a job's places; returns the buckets in which it had one. Removing a rule removes all its places.
local function give_up_places(rules, id, name, key)
  local freed = {}
  for _, bucket in ipairs(buckets_of(rules, name, key)) do
    local member = bucket .. "\n" .. name_of(P, id)
    if rule_of_bucket(rules, bucket)[1] > 0 and call("ZREM", PLACES, member) == 1 then
      freed[#freed + 1] = bucket
    end
  end
  return freed
end

-- The same for a job that the stalled check recovered: it goes to the front, and takes a place again at the claim.
local function give_up_lost_places(gate, id, key)
  limit_at(gate.base or P)
  local job = call("HMGET", key, "name", "ox:limit")
  give_up_places(rules_of(gate.limits), id, job[1], job[2])
end

-- Removes the places of jobs that left `active`, and admits others instead. `leavers` is a list of { id, name and
-- key, whether it is now in front of all others }.
local function leave_places(text, base, leavers)
  limit_at(base)
  local rules, vacant = rules_of(text), {}
  for _, one in ipairs(leavers) do
    for _, bucket in ipairs(give_up_places(rules, one[1], one[2][1], one[2][2])) do
      if not one[3] then
        vacant[bucket] = (vacant[bucket] or 0) + 1
      end
    end
  end
  if next(vacant) then
    local gate = read_gate(P)
    for bucket, places in pairs(vacant) do
      local rule = rule_of_bucket(rules, bucket)
      local room = rule and math.min(places, (room_in(bucket, rule))) or 0
      if room > 0 then
        let_in(bucket, room, gate)
      end
    end
  end
end

-- Builds the check of a claim. `admits` returns whether a job may start, and remembers that it starts or is held back;
-- `write` stores both. Nothing is written before.
local function limiting(gate, now)
  open_due(gate, now, 20)
  local rules = rules_of(gate.limits)
  local rooms, waits, entering, started, held_back, vacant = {}, {}, {}, {}, {}, {}
  local limits = {}

  local function room_of(bucket)
    if not rooms[bucket] then
      local known = call("ZSCORE", OPENING, bucket)
      rooms[bucket], waits[bucket] = room_in(bucket, rule_of_bucket(rules, bucket), not known)
    end
    return rooms[bucket]
  end

  function limits.admits(id, fields)
    local name, key
    for i = 1, #fields, 2 do
      if fields[i] == "name" then
        name = fields[i + 1]
      elseif fields[i] == "ox:limit" then
        key = fields[i + 1]
      end
    end
    local buckets = buckets_of(rules, name, key)
    for i, bucket in ipairs(buckets) do
      if room_of(bucket) <= 0 then
        held_back[#held_back + 1] = { id, bucket }
        limits.is_tired = #held_back >= HOLD_BACK
        if i == 2 then -- it would have had a place in the first bucket: another job may take it
          vacant[buckets[1]] = (vacant[buckets[1]] or 0) + 1
        end
        return false
      end
    end
    for _, bucket in ipairs(buckets) do
      rooms[bucket] = rooms[bucket] - 1
      local rule = rule_of_bucket(rules, bucket)
      if rule[1] > 0 then
        entering[#entering + 1] = 0
        entering[#entering + 1] = bucket .. "\n" .. name_of(P, id)
      end
      if rule[2] > 0 then
        started[bucket] = (started[bucket] or 0) + 1
      end
    end
    return true
  end

  function limits.write()
    if #entering > 0 then
      call("ZADD", PLACES, unpack(entering))
    end
    for bucket, many in pairs(started) do
      local key = AT .. "ox:rate:" .. bucket
      if call("INCRBY", key, many) == many then
        call("PEXPIRE", key, MINUTE)
      end
    end
    for _, one in ipairs(held_back) do
      local id, bucket = one[1], one[2]
      local place, due = delayed_score(P, now, DAY)
      call("ZADD", P .. "delayed", place, id)
      call("ZADD", PARKED, 0, bucket .. "\n" .. string.format("%016.0f", place) .. "\n" .. name_of(P, id))
      local wait = waits[bucket] and math.max(waits[bucket], 1) or LOOK
      call("ZADD", OPENING, "NX", string.format("%.0f", now + wait), bucket)
      call("XADD", P .. "events", "*", "event", "delayed", "jobId", id, "delay", string.format("%.0f", due))
    end
  end

  -- Afterwards: others are offered the places that a job could not take because of its other bucket.
  function limits.offer()
    for bucket, places in pairs(vacant) do
      local room = math.min(places, rooms[bucket])
      if room > 0 then
        let_in(bucket, room, gate)
      end
    end
  end

  return limits
end
