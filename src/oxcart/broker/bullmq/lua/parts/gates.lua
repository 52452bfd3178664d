-- Dependencies: jobs that wait for others, and the gates between them (docs/decisions/42).
--
-- A gate is a job of the hidden queue `<queue>~gates`, one per job that others wait for. It is that job's parent, with
-- the policy to continue whatever its child did. So every client that ends the job opens the gate, a peer included.
-- The fields `d:<key>` of its hash are the dependents: `a` for AFTER, `y` for AFTER_ANY. Each dependent waits in
-- `waiting-children`, and its `:dependencies` name what it still waits for.
-- Needs base, gate, insert, attempts, parent, removal and failing.

local HIDDEN = "~gates:"
-- Dependents that a job remembers once they are released.
local SHOWN = 20

-- The key prefix of a queue's gates.
local function hidden_of(prefix)
  return string.sub(prefix, 1, -2) .. HIDDEN
end

-- A gate's id contains the job's, without a colon: its key must name the queue.
local function gate_id(id)
  return (string.gsub(id, "[:%%]", { [":"] = "%3A", ["%"] = "%25" }))
end

-- Returns the formal state of a failed job.
local function failed_as(key)
  return formal_failure(unpack(call("HMGET", key, "ox:category", "ox:dead", "atm", "stc", "opts",
    "attemptsMade")))
end

-- A failed job that is not kept leaves only its reason with its gate, so the failure is recorded at the gate.
local function mark_gate_failed(gate, state)
  if gate and string.find(gate, HIDDEN, 1, true) and call("EXISTS", gate) == 1 then
    call("HSET", gate, "ox:ended", state)
  end
end

-- Returns how a job has ended, and its result or the reason; nil while it has not. A missing job counts as removed,
-- unless its gate or another parent of it has its outcome.
local function ended_as(prefix, id, gate)
  local key = prefix .. id
  if call("ZSCORE", prefix .. "completed", id) then
    return "completed", call("HGET", key, "returnvalue") or "null"
  elseif call("ZSCORE", prefix .. "failed", id) then
    return failed_as(key), call("HGET", key, "failedReason") or ""
  end
  local parents = { gate }
  parents[2] = gate and call("HGET", gate, "ox:other") or nil
  for _, parent in ipairs(parents) do
    local value = call("HGET", parent .. ":processed", key)
    if value then
      return "completed", value
    end
    value = call("HGET", parent .. ":failed", key)
    if value or call("ZSCORE", parent .. ":unsuccessful", key) then
      return "failed", value or ""
    end
  end
  if call("EXISTS", key) == 0 then
    return "removed", ""
  end
  return nil
end

local EFFECTS = {
  failed = { category = "permanent", state = "failed", why = "a dependency failed" },
  dead_letter = { category = "system", state = "dead_letter", why = "a dependency is in the dead letters", dead = true },
  cancelled = { category = "cancelled", state = "cancelled", why = "a dependency was cancelled" },
  removed = { category = "cancelled", state = "cancelled", why = "a dependency was cancelled", words = "was removed" },
}

-- Builds the reason of a job that ends with its dependency: which one, and why that one ended, cut to a bound. A chain
-- passes the first cause on unchanged.
local LONGEST_STORY = 1000
local function describe_cause(of, outcome, reason)
  if string.sub(reason, 1, 11) == "dependency " then
    return reason
  end
  if #reason > LONGEST_STORY then
    reason = string.gsub(string.sub(reason, 1, LONGEST_STORY), "[\192-\255][\128-\191]*$", "") .. "…"
  end
  local words = EFFECTS[outcome].words or (outcome == "cancelled" and "was cancelled" or "failed")
  return "dependency " .. of .. " " .. words .. (reason ~= "" and ": " .. reason or "")
end

-- Ends a job that cannot run because of the outcome of a dependency.
local function fail_dependent(key, outcome, of, reason, now)
  local prefix, id = split_key(key)
  if call("ZREM", prefix .. "waiting-children", id) == 0 then
    return
  end
  local effect, stamp, facts = EFFECTS[outcome], string.format("%.0f", now), read_attempt(key, prefix)
  local cause = describe_cause(of, outcome, reason)
  local known = call("HMGET", key, "opts", "ox:history", "parent", "parentKey", "ox:lifetime")
  if known[5] then
    call("ZREM", prefix .. "ox:expiring", id)
  end
  local readable, opts = pcall(cjson.decode, known[1] or "")
  local kept = readable and type(opts) == "table" and opts.removeOnFail
  local removed = kept == true or kept == 0 or (type(kept) == "table" and kept.count == 0)
  call("DEL", key .. ":dependencies") -- a replay runs the job again
  if not removed then
    call("HSET", key .. ":failed", of, reason)
    call("ZADD", prefix .. "failed", stamp, id)
    call("HSET", key, "failedReason", cause, "finishedOn", stamp, "ox:category", effect.category)
    if effect.dead then
      call("HSET", key, "ox:dead", "dependency")
    end
    if known[2] then
      call("HSET", key, "ox:history", noted(known[2], stamp, "pending", effect.state, "", effect.why))
    end
  end
  if known[3] then
    local fine, parent = pcall(cjson.decode, known[3])
    if fine then
      child_failed(parent, key, cause, now)
    end
  end
  if removed then
    mark_gate_failed(known[4], effect.state)
    delete_data(key)
  end
  local entry = call("XADD", prefix .. "events", "MAXLEN", "~", max_events(prefix), "*",
    "event", "failed", "jobId", id, "failedReason", cause, "prev", "waiting-children")
  record_attempt(facts, entry, id, "failed", stamp, cause, nil, effect.category, nil, effect.state, prefix)
end

-- Applies the end of a dependency to a job that waits for it. May be repeated.
local function meet(key, kind, of, outcome, value, now)
  if kind == "a" and outcome ~= "completed" then
    if call("SISMEMBER", key .. ":dependencies", of) == 1 then -- else it ended before, and may have been replayed
      fail_dependent(key, outcome, of, value, now)
    end
    return
  end
  local prefix, id = split_key(key)
  if kind == "y" then
    local others = call("HGET", key, "ox:any")
    if not others then
      return -- another dependency came first
    end
    others = cjson.decode(others)
    for i = 1, #others, 1000 do
      call("SREM", key .. ":dependencies", unpack(others, i, math.min(i + 999, #others)))
    end
    call("HDEL", key, "ox:any")
  elseif call("SREM", key .. ":dependencies", of) == 0 then
    return
  end
  if outcome == "completed" then
    call("HSET", key .. ":processed", of, value)
  else
    call("HSET", key .. ":failed", of, value)
  end
  release_if_childless(prefix, id, now)
end

-- Gates that this call has found or made, and hidden queues that it has registered with a queue.
local met, noted_with = {}, {}

-- Registers a hidden queue with the queue whose workers settle its gates.
local function note_hidden(prefix, hidden)
  if not noted_with[prefix .. hidden] then
    noted_with[prefix .. hidden] = true
    call("SADD", prefix .. "ox:gates", string.sub(hidden, 1, -2))
  end
end

-- Puts a job behind the gate of another job of this slot; makes the gate if there is none yet.
local function attach(prefix, id, key, kind, now)
  local hidden, name = hidden_of(prefix), gate_id(id)
  local gate, of = hidden .. name, prefix .. id
  if not met[gate] and call("EXISTS", gate) == 0 then
    call("HSET", gate, "name", "gate", "data", "{}", "opts", "{}", "timestamp", now, "delay", 0, "priority", 0,
      "ox:of", id)
    call("SADD", gate .. ":dependencies", of)
    call("ZADD", hidden .. "waiting-children", now, name)
    call("HSETNX", hidden .. "meta", "opts.maxLenEvents", 10)
    local other = call("HGET", of, "parentKey")
    if other and other ~= "" and other ~= gate and call("EXISTS", other) == 1 then
      call("HSET", gate, "ox:other", other)
      call("SADD", hidden .. "ox:weak", name)
    else
      call("HSET", of, "parentKey", gate, "parent",
        cjson.encode({ id = name, queueKey = string.sub(hidden, 1, -2), cpof = true }))
    end
  end
  met[gate] = true
  call("HSET", gate, "d:" .. key, kind)
  note_hidden(prefix, hidden)
  note_hidden((split_key(key)), hidden)
end

local function drop_gate(hidden, name)
  call("LREM", hidden .. "wait", 0, name)
  call("ZREM", hidden .. "waiting-children", name)
  call("SREM", hidden .. "ox:weak", name)
  delete_data(hidden .. name)
end

-- Releases the dependents behind an opened gate, at most `room` of them. Returns how many.
local function settle_gate(hidden, name, now, room)
  local gate = hidden .. name
  local known = call("HMGET", gate, "ox:of", "ox:ended")
  if not known[1] then
    drop_gate(hidden, name)
    return 0
  end
  local prefix = string.sub(hidden, 1, -1 - #HIDDEN) .. ":"
  local of = prefix .. known[1]
  local outcome, value = ended_as(prefix, known[1], gate)
  if not outcome then
    -- Released by a client that removed its child: the sweep settles it from now on.
    call("LREM", hidden .. "wait", 0, name)
    call("ZADD", hidden .. "waiting-children", now, name)
    call("SADD", hidden .. "ox:weak", name)
    return 0
  end
  if outcome == "failed" and known[2] then
    outcome = known[2]
  end
  local cursor, released, first = "0", 0, {}
  repeat
    local found = call("HSCAN", gate, cursor, "MATCH", "d:*", "COUNT", 100)
    cursor = found[1]
    for i = 1, #found[2], 2 do
      if released < room then
        local key = string.sub(found[2][i], 3)
        pcall(meet, key, found[2][i + 1], of, outcome, value, now) -- the repair retries what fails here
        call("HDEL", gate, found[2][i])
        released = released + 1
        if released <= SHOWN then
          first[released] = key
        end
      end
    end
  until cursor == "0" or released >= room
  -- The gate goes away with its dependents: without this a graph could not be drawn from a job that has ended.
  if released > 0 and call("EXISTS", of) == 1 then
    call("HSETNX", of, "ox:released", cjson.encode(first))
  end
  if released < room then
    drop_gate(hidden, name)
  end
  return released
end

-- Settles the gates that this call opened, and those that these open, within `room`; workers do the rest.
local function settle_opened(now, room)
  local at, released, hidden_ones = 1, 0, {}
  while at <= #opened and released < room do
    hidden_ones[opened[at][1]] = true
    released = released + settle_gate(opened[at][1], opened[at][2], now, room - released)
    at = at + 1
  end
  for hidden in pairs(hidden_ones) do
    if call("EXISTS", hidden .. "wait") == 0 then
      call("DEL", hidden .. "marker", hidden .. "events") -- the work is done, so no worker need wake up
    end
  end
  return released
end

-- Opens gates whose job ended without opening them: it has another parent, or a client removed it.
-- `names` are waiting gates.
local function open_ended(hidden, names)
  local prefix = string.sub(hidden, 1, -1 - #HIDDEN) .. ":"
  for _, name in ipairs(names) do
    local gate = hidden .. name
    local of = peek(gate, "ox:of")
    if not of or ended_as(prefix, of, gate) then
      if call("ZREM", hidden .. "waiting-children", name) == 1 then
        call("RPUSH", hidden .. "wait", name) -- so that gates beyond `room` are not lost
        opened[#opened + 1] = { hidden, name }
      end
    end
  end
end
