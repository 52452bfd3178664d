-- Limits per job type and per key (decision 56), and the check of a claim, which also obeys the groups.
-- Needs base, gate, insert, buckets and groups.

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
  if string.sub(bucket, 1, 2) == "g:" then
    if room > 0 or count_in(PARKED, bucket) == 0 then
      call("ZREM", OPENING, bucket)
      if room > 0 then
        enter_turns(rules, bucket)
      end
    else
      call("ZADD", OPENING, string.format("%.0f", now + (wait and math.max(wait, 1) or LOOK)), bucket)
    end
    return room > 0 and 1 or 0
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
  if not next(rules.t) and not rules.g and not rule_of_bucket(rules, "k:") and call("EXISTS", OPENING) == 0 then
    call("HDEL", AT .. "meta", "ox:limits")
  end
  return #due == most or left <= 0
end

-- Removes a job's places; returns the buckets in which it had one. Removing a rule removes all its places.
local function give_up_places(rules, id, name, key, group)
  local freed = {}
  for _, bucket in ipairs(buckets_of(rules, name, key)) do
    local member = bucket .. "\n" .. name_of(P, id)
    if rule_of_bucket(rules, bucket)[1] > 0 and call("ZREM", PLACES, member) == 1 then
      freed[#freed + 1] = bucket
    end
  end
  if takes_turns(rules) then
    freed[#freed + 1] = give_up_turn(rules, id, group)
  end
  return freed
end

-- The same for a job that the stalled check recovered: it goes to the front, and takes a place again at the claim.
local function give_up_lost_places(gate, id, key)
  limit_at(gate.base or P)
  local job = call("HMGET", key, "name", "ox:limit", "ox:group")
  give_up_places(rules_of(gate.limits), id, job[1], job[2], job[3])
end

-- Removes the places of jobs that left `active`, and admits others instead. `leavers` is a list of { id, its name,
-- key and group, whether it is now in front of all others }.
local function leave_places(text, base, leavers)
  limit_at(base)
  local rules, vacant, turns = rules_of(text), {}, false
  for _, one in ipairs(leavers) do
    for _, bucket in ipairs(give_up_places(rules, one[1], one[2][1], one[2][2], one[2][3])) do
      if string.sub(bucket, 1, 2) == "g:" then
        enter_turns(rules, bucket)
        turns = true
      elseif not one[3] then
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
  if turns then
    let_through(read_gate(P), rules, tonumber(server_ms()), WINDOW)
  end
end

-- Builds the check of a claim. `admits` returns whether a job may start, and remembers that it starts or is held back;
-- `write` stores both. Nothing is written before, but that the groups let as many jobs through as the claim wants.
local function limiting(gate, now, count)
  open_due(gate, now, 20)
  local rules = rules_of(gate.limits)
  local rooms, waits, entering, started, held_back, vacant = {}, {}, {}, {}, {}, {}
  local grouped, parked, turned_away = takes_turns(rules), {}, {}
  if grouped then
    gather(rules, now)
    let_through(gate, rules, now, count + WINDOW)
  end
  local limits = {}

  local function room_of(bucket)
    if not rooms[bucket] then
      local known = call("ZSCORE", OPENING, bucket)
      rooms[bucket], waits[bucket] = room_in(bucket, rule_of_bucket(rules, bucket), not known)
    end
    return rooms[bucket]
  end

  -- Returns whether the job's group let it through. A job that has started since has to wait for another turn.
  local function is_let(id, job)
    if job["ox:through"] ~= (job.ats or "0") then
      return false
    end
    local bucket = group_bucket(job["ox:group"])
    return rule_of_group(rules, string.sub(bucket, 3))[1] == 0 or call("ZSCORE", PLACES, bucket .. "\n" .. id)
  end

  function limits.admits(id, fields)
    local name, key, job
    if grouped then
      job = {}
      for i = 1, #fields, 2 do
        job[fields[i]] = fields[i + 1]
      end
      name, key = job.name, job["ox:limit"]
      if not is_let(id, job) then
        parked[#parked + 1] = { id, job }
        limits.is_tired = #parked + #held_back >= HOLD_BACK
        return false
      end
    else
      for i = 1, #fields, 2 do
        if fields[i] == "name" then
          name = fields[i + 1]
        elseif fields[i] == "ox:limit" then
          key = fields[i + 1]
        end
      end
    end
    local buckets = buckets_of(rules, name, key)
    for i, bucket in ipairs(buckets) do
      if room_of(bucket) <= 0 then
        held_back[#held_back + 1] = { id, bucket }
        limits.is_tired = #parked + #held_back >= HOLD_BACK
        if grouped then
          turned_away[#turned_away + 1] = { id, job["ox:group"] }
        end
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
    for _, one in ipairs(parked) do
      local id, job = one[1], one[2]
      local bucket = give_up_turn(rules, id, job["ox:group"]) -- a peer that retried it let it keep its place
      if bucket then
        enter_turns(rules, bucket)
      end
      park_in_group(rules, id, job["ox:group"], job.priority, job.ats and job.ats ~= "0", job["ox:turn"], now)
    end
    for _, one in ipairs(turned_away) do
      local bucket = give_up_turn(rules, one[1], one[2])
      if bucket then
        enter_turns(rules, bucket)
      end
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
    if #parked + #turned_away > 0 then
      let_through(gate, rules, now, WINDOW)
    end
  end

  return limits
end
