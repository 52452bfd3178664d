-- Whether jobs of a queue can be claimed, and into which list a ready job goes.
--
-- While a queue is paused, ready jobs without priority wait in `paused` instead of `wait`. Peers of
-- version 6 never use `paused`, so both lists can hold jobs; `settle` restores "at most one of them is
-- non-empty" by merging, and renames only onto an absent key.

-- The rate limit's counter while a queue holds all jobs back: above every limit.
local HELD = 9007199254740991

-- Orders the two lists for the queue's present pause state; returns whether it changed anything.
local function settle(prefix, paused)
  local from, to = prefix .. (paused and "wait" or "paused"), prefix .. (paused and "paused" or "wait")
  if call("EXISTS", from) == 0 then
    return false
  end
  if call("EXISTS", to) == 0 then
    call("RENAME", from, to)
    return true
  end
  -- The list whose oldest job (the tail) is older is served first, so its ids stay nearer to the tail.
  local most = 2000
  local from_born = tonumber(peek(prefix .. call("LINDEX", from, -1), "timestamp")) or 0
  local to_born = tonumber(peek(prefix .. call("LINDEX", to, -1), "timestamp")) or 0
  local moved
  if from_born < to_born then
    -- older: behind the tail, newest of them first
    moved = call("LRANGE", from, 0, most - 1)
    call("RPUSH", to, unpack(moved))
    call("LTRIM", from, #moved, -1)
  else
    -- younger: before the head, oldest of them first
    moved = call("LRANGE", from, -most, -1)
    local turned = {}
    for i = #moved, 1, -1 do
      turned[#turned + 1] = moved[i]
    end
    call("LPUSH", to, unpack(turned))
    call("LTRIM", from, 0, -(#moved + 1))
  end
  return true
end

-- `active`: writes pending changes of a script; called before a script counts the list.
local unwritten = {}

-- Returns how many jobs a queue and its lanes have active without this script's own queue, and whether that is one of
-- them. No script changes `active` of another queue, so a script that reads many gates counts once.
local counted = {}
local function active_elsewhere(base)
  local known = counted[base]
  if not known or known[1] ~= P then
    known = { P, 0, base == P }
    if base ~= P then
      known[2] = call("LLEN", base .. "active")
    end
    local stem = string.sub(base, 1, -2) .. "@"
    for _, lane in ipairs(call("SMEMBERS", base .. "ox:lanes:busy")) do
      local prefix = stem .. lane .. ":"
      if prefix == P then
        known[3] = true
      else
        known[2] = known[2] + call("LLEN", prefix .. "active")
      end
    end
    counted[base] = known
  end
  return known[2], known[3]
end

-- Returns a bound in `meta`, or nil. A value that is no number of at least `least` bounds nothing, because otherwise
-- it would stop every call. `gate.odd` names it: the tick returns that, and a worker logs it.
local function bound_of(gate, field, text, least)
  local number = text and tonumber(text)
  if number and number >= least and number < 2 ^ 53 then
    if number > 0 then
      return number
    end
    gate.odd = (gate.odd or "") .. field .. "=0 (no job starts) "
    return number
  elseif text then
    gate.odd = (gate.odd or "") .. field .. "=" .. string.sub(text, 1, 40) .. " (ignored) "
  end
  return nil
end

-- Returns a table: `paused`, `closed` (paused or at its concurrency), `target` (list for ready jobs),
-- `max`, `duration` (queue-wide rate limit), `room` (how many more may be active, nil without a bound), `limits`
-- (the rules per type and key, if there are any), `odd` (bounds in `meta` that make no sense, for the log).
-- For a lane, and for a queue with lanes, also `base` (the key prefix of the base queue). For a lane also `limiter`
-- (the key of the base queue's rate) and `shut` (the base queue is closed). Pause, concurrency, rate and rules of the
-- base queue apply to all its lanes together.
local function read_gate(prefix)
  local meta = call("HMGET", prefix .. "meta", "paused", "concurrency", "max", "duration", "opts.maxLenEvents",
    "ox:keep", "ox:until", "ox:limits", "ox:lanes")
  known_max_events[prefix] = asserted(prefix, meta[5], meta[6], meta[7]) or nil
  local gate = { paused = meta[1] and true or false, limits = meta[8] }
  gate.max, gate.duration = bound_of(gate, "max", meta[3], 1), bound_of(gate, "duration", meta[4], 1)
  gate.closed = gate.paused
  gate.target = prefix .. (gate.paused and "paused" or "wait")
  if gate.paused then
    settle(prefix, true)
  else
    local most = bound_of(gate, "concurrency", meta[2], 0)
    if most then
      if unwritten.active then
        unwritten.active()
      end
      gate.room = most - call("LLEN", prefix .. "active")
      gate.closed = gate.room <= 0
    end
  end
  local base = meta[9]
  if base then
    if base == "+" then
      base = prefix
    else
      meta = call("HMGET", base .. "meta", "paused", "concurrency", "max", "duration", "ox:limits")
      gate.max, gate.duration = bound_of(gate, "max", meta[3], 1), bound_of(gate, "duration", meta[4], 1)
      gate.limiter, gate.limits = base .. "limiter", meta[5]
      gate.shut = meta[1] and true or false
    end
    gate.base = base
    local most = bound_of(base == prefix and {} or gate, "concurrency", meta[2], 0)
    if most and not gate.shut then
      if unwritten.active then
        unwritten.active()
      end
      local elsewhere, is_ours = active_elsewhere(base)
      local room = most - elsewhere - (is_ours and call("LLEN", P .. "active") or 0)
      gate.room = math.min(gate.room or room, room)
      gate.shut = room <= 0
    end
    gate.closed = gate.closed or gate.shut or false
  end
  return gate
end
