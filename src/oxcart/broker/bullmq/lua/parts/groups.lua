-- Fair groups (decision 121): the groups of a queue take turns, however many jobs each of them has.
--
-- A job that waits for its group's turn is in `delayed`, due in a day, with a note in `ox:parked` under the bucket
-- `g:<group>`. The note holds the job's order within the group: its priority, and then when it came. The job's field
-- `ox:turn` repeats that order, so a note of a job that went another way is recognized. `ox:turns` is a sorted set of
-- the groups that may have a next job, by a virtual time: each job that a group lets through adds 1 / weight.
--
-- A job that is let through is in `wait`, as any other. Its field `ox:through` is the number of its starts at that time:
-- a job that has started since, or that a peer put into a list, is parked by the claim that meets it. Jobs without a
-- group are the group "". Groups exist in a queue itself, not in its lanes.
-- Needs base, gate, insert and buckets.

-- How many jobs that are let through stay in `wait` for peers and for the next claim.
local WINDOW = 20
-- Most jobs that one call lets through, and most notes and groups that it looks at for that.
local MOST_THROUGH, MOST_LOOKS = 150, 500
-- Most jobs that one call takes out of `prioritized`.
local GATHER = 50
-- The length of the order in a note.
local ORDER = 27

local function turns_key()
  return AT .. "ox:turns"
end

-- Returns whether the queue of this script takes turns.
local function takes_turns(rules)
  return rules.g ~= nil and P == AT
end

-- Returns the bucket of a job's group. A group that no client of ours can have written counts as none.
local function group_bucket(group)
  return "g:" .. (group and not string.find(group, "%c") and group or "")
end

-- Returns the order of a job within its group: by priority, then in front of its equals or behind them. `place` is its
-- score in `delayed`.
local function order_of(priority, front, place)
  local rank = tonumber(priority) or 0
  rank = rank == rank and math.min(math.max(rank, 0), 9999999999) or 0
  return string.format("%010.0f%s%016.0f", rank, front and "0" or "1", front and 9007199254740991 - place or place)
end

-- Lets a group take turns, at the end of the present round. A group that takes turns already stays where it is.
local function enter_turns(rules, bucket)
  local turns = turns_key()
  if call("ZSCORE", turns, bucket) then
    return
  end
  local first = call("ZRANGE", turns, 0, 0, "WITHSCORES")
  local pass = first[2] and tonumber(first[2]) + 1 / rule_of_group(rules, string.sub(bucket, 3))[3] or 0
  call("ZADD", turns, string.format("%.17g", pass), bucket)
end

-- Parks a ready job in its group. `turn` is its field `ox:turn`: a job whose note is still there keeps its order.
-- The caller takes it out of the list that it comes from.
local function park_in_group(rules, id, group, priority, front, turn, now)
  local bucket = group_bucket(group)
  local place = delayed_score(P, now, DAY)
  call("ZADD", P .. "delayed", place, id)
  if not (turn and call("ZSCORE", PARKED, bucket .. "\n" .. turn .. "\n" .. id)) then
    turn = order_of(priority, front, place)
    call("HSET", P .. id, "ox:turn", turn, "delay", 0)
    call("ZADD", PARKED, 0, bucket .. "\n" .. turn .. "\n" .. id)
  end
  enter_turns(rules, bucket)
end

-- Returns the id that a note names, and its starts; nil if that job does not wait for its group's turn any more. One
-- that was given a delay of its own waits for that.
local function read_note(bucket, note)
  local id = string.sub(note, #bucket + ORDER + 3)
  local job = redis.pcall("HMGET", P .. id, "ox:turn", "ats", "delay")
  if job[1] and job[1] == string.sub(note, #bucket + 2, #bucket + ORDER + 1) and (job[3] or "0") == "0"
      and call("ZSCORE", P .. "delayed", id) then
    return id, job[2] or "0"
  end
  return nil
end

-- Returns the id and the starts of a group's next job, and its note. Notes of jobs that went another way are dropped.
-- Returns nil if there is none, or if `budget` is used up.
local function next_of_group(bucket, budget)
  local page = 1
  while budget.looks > 0 do
    local notes = call("ZRANGEBYLEX", PARKED, "[" .. bucket .. "\n", "(" .. bucket .. "\011", "LIMIT", 0, page)
    local stale, id, starts, found = {}, nil, nil, nil
    for i = 1, #notes do
      budget.looks = budget.looks - 1
      id, starts = read_note(bucket, notes[i])
      if id then
        found = notes[i]
        break
      end
      stale[#stale + 1] = notes[i]
    end
    if #stale > 0 then
      call("ZREM", PARKED, unpack(stale))
    end
    if found or #notes < page then
      return id, starts, found
    end
    page = 50
  end
  return nil
end

-- Lets jobs through until `wanted` ready jobs are in the list, by turns; returns how many. A job enters its new place
-- before it leaves the old one. A group that is paused leaves the turns until it is resumed. A group at its limit leaves
-- them until a job of it ends, or until it is checked again.
local function let_through(gate, rules, now, wanted)
  if gate.paused then
    return 0
  end
  local many = math.min(wanted - call("LLEN", gate.target), MOST_THROUGH)
  local turns, entered, rooms = turns_key(), 0, {}
  local budget = { looks = MOST_LOOKS }
  while entered < many and budget.looks > 0 do
    local first = call("ZRANGE", turns, 0, 0, "WITHSCORES")
    local bucket, pass = first[1], tonumber(first[2])
    if not bucket then
      break
    end
    budget.looks = budget.looks - 1
    local group = string.sub(bucket, 3)
    local rule = rule_of_group(rules, group)
    local room, wait = rooms[bucket], nil
    if not room then
      room = math.huge
      if rule[4] then
        room = 0
      elseif rule[1] > 0 or rule[2] > 0 then
        room, wait = room_in(bucket, rule, not call("ZSCORE", OPENING, bucket))
      end
      rooms[bucket] = room
    end
    if room <= 0 then
      call("ZREM", turns, bucket)
      if not rule[4] then
        local check = string.format("%.0f", now + (wait and math.max(wait, 1) or LOOK))
        call("ZADD", OPENING, "NX", check, bucket)
      end
    else
      local id, starts, note = next_of_group(bucket, budget)
      if id then
        call("LPUSH", gate.target, id)
        call("HSET", P .. id, "ox:through", starts)
        if rule[1] > 0 then
          call("ZADD", PLACES, 0, bucket .. "\n" .. id)
        end
        if rule[2] > 0 and call("INCR", AT .. "ox:rate:" .. bucket) == 1 then
          call("PEXPIRE", AT .. "ox:rate:" .. bucket, MINUTE)
        end
        call("ZREM", P .. "delayed", id)
        call("ZREM", PARKED, note)
        call("ZADD", turns, string.format("%.17g", pass + 1 / rule[3]), bucket)
        rooms[bucket] = room - 1
        entered = entered + 1
      elseif budget.looks > 0 then
        call("ZREM", turns, bucket)
      end
    end
  end
  if entered > 0 or budget.looks <= 0 then
    wake_now(P, gate)
  end
  return entered
end

-- Parks jobs that peers or scripts put into `prioritized`: a priority counts within a group only, and `wait`, which
-- comes first, may never be empty.
local function gather(rules, now)
  local gone = call("ZRANGE", P .. "prioritized", 0, GATHER - 1)
  for _, id in ipairs(gone) do
    local job = redis.pcall("HMGET", P .. id, "ox:group", "priority", "ats", "ox:turn", "name")
    if job[5] then
      park_in_group(rules, id, job[1], job[2], job[3] and job[3] ~= "0", job[4], now)
    end
  end
  if #gone > 0 then
    call("ZREM", P .. "prioritized", unpack(gone))
  end
end

-- Drops lost places of some groups: a peer that ends a job frees none. The next call continues behind them.
local SWEPT = 20
local function sweep_places()
  local key = AT .. "ox:swept"
  local last = call("GET", key)
  local members = call("ZRANGEBYLEX", PLACES, last and "(" .. last or "[g:", "(g;", "LIMIT", 0, SWEPT)
  if #members == SWEPT then
    call("SET", key, members[SWEPT], "EX", 60)
  elseif last then
    call("DEL", key)
  end
  local seen = {}
  for _, member in ipairs(members) do
    local bucket = string.match(member, "^([^\n]*)")
    if not seen[bucket] then
      seen[bucket] = true
      drop_lost_holders(bucket)
    end
  end
end

-- Fills the window of jobs that are let through up.
local function tend_groups(gate, now)
  limit_at(gate.base or P)
  local rules = rules_of(gate.limits)
  if takes_turns(rules) then
    gather(rules, now)
    let_through(gate, rules, now, WINDOW)
  end
end

-- The part of the tick.
local function tick_groups(gate, now)
  limit_at(gate.base or P)
  if takes_turns(rules_of(gate.limits)) then
    sweep_places()
    tend_groups(gate, now)
  end
end

-- Parks a job that is added, in a queue that takes turns. Afterwards the caller calls `tend_groups` once.
local adding_rules
local function join_group(gate, id, group, priority, front, now)
  if not adding_rules then
    limit_at(gate.base or P)
    adding_rules = rules_of(gate.limits)
  end
  park_in_group(adding_rules, id, group, priority, front, nil, now)
end

-- Gives the group's place of a job up, if it has one; returns the bucket then.
local function give_up_turn(rules, id, group)
  local bucket = group_bucket(group)
  if rule_of_group(rules, string.sub(bucket, 3))[1] > 0 and call("ZREM", PLACES, bucket .. "\n" .. id) == 1 then
    return bucket
  end
  return nil
end

-- Parks a due job of a queue that takes turns, which gives its place up; returns whether the queue takes turns. The
-- caller then calls `tend_groups` once. A job that had an attempt goes in front of its group.
-- Returns "kept" for a job that waits for its turn already. Its day has passed: it is due in another one, unless
-- `passing` is set.
local function park_promoted(gate, id, stamp, passing)
  limit_at(gate.base or P)
  local rules = rules_of(gate.limits)
  if not takes_turns(rules) then
    return false
  end
  local job = call("HMGET", P .. id, "ox:group", "priority", "ats", "ox:turn", "delay")
  local waits = job[4] and (job[5] or "0") == "0"
    and call("ZSCORE", PARKED, group_bucket(job[1]) .. "\n" .. job[4] .. "\n" .. id)
  if not (waits and passing) then
    give_up_turn(rules, id, job[1])
    park_in_group(rules, id, job[1], job[2], job[3] and job[3] ~= "0", job[4], tonumber(stamp))
  end
  return waits and "kept" or true
end

-- Counts the jobs of a group, or of all for nil, anew that have started or are let through: its limit has changed. A
-- job that a peer delayed after a start keeps its place.
local function count_places_anew(rules, gate, only)
  local first, last = only and only .. "\n" or "g:", only and only .. "\011" or "g;"
  local kept = {}
  for _, member in ipairs(call("ZRANGEBYLEX", PLACES, "[" .. first, "(" .. last)) do
    local bucket, id = string.match(member, "^([^\n]*)\n(.*)$")
    if rule_of_group(rules, string.sub(bucket, 3))[1] > 0 and is_delayed_by_peer(bucket, P, id) then
      kept[#kept + 1] = member
    end
  end
  call("ZREMRANGEBYLEX", PLACES, "[" .. first, "(" .. last)
  for _, member in ipairs(kept) do
    call("ZADD", PLACES, 0, member)
  end
  local function count(ids, ready)
    for _, id in ipairs(ids) do
      local job = redis.pcall("HMGET", P .. id, "ox:group", "ox:through", "ats", "name")
      local bucket = job[4] and group_bucket(job[1])
      if bucket and (not only or bucket == only) and rule_of_group(rules, string.sub(bucket, 3))[1] > 0
          and (not ready or job[2] == (job[3] or "0")) then
        call("ZADD", PLACES, 0, bucket .. "\n" .. id)
      end
    end
  end
  count(call("LRANGE", P .. "active", 0, -1), false)
  count(call("LRANGE", gate.target, -1000, -1), true)
end
