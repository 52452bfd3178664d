-- Ends a job as cancelled. On the wire it is a failed job whose field `ox:category` holds the reason. A job whose
-- lifetime has expired ends in the same way, as a dead letter.
--
-- A job that does not run ends at once. A running job is either asked to end (its worker is notified, if it is one of
-- ours) or ended by force. Force deletes its lease, so the server refuses whatever its worker still reports.
-- Needs base, gate, insert, store, parent, removal, deduplication, history and attempts.

-- Ms after which an unread request to a worker of ours expires.
local REQUEST_LIFE = "86400000"

-- How such a job ends: its category, why it is a dead letter (or nil), and the reason of the transition.
local as = { category = "cancelled", state = "cancelled", why = "the job was cancelled" }

local FORMAL = { waiting = "scheduled", prioritized = "scheduled", delayed = "delayed", ["waiting-children"] = "pending" }

-- Records the end of a job that keeps a history.
local function note_settled(key, id, from, stamp, reason)
  local known = call("HMGET", key, "ox:history", "atm", "delay", "attemptsMade")
  if not known[1] then
    return
  end
  if from == "active" then
    note_end(key, known[1], "failed", as.state, as.why, stamp, reason, as.category)
    return
  end
  local left = FORMAL[from]
  if left == "delayed" and is_held_back(key, known[1], known[3]) then
    left = "scheduled"
  elseif left == "delayed" and attempts_made(known[2], known[4]) > 0 then
    left = "retrying"
  end
  call("HSET", key, "ox:history", noted(known[1], stamp, left, as.state, "", as.why))
end

-- Reads what the end of a child will change in its parent, before anything is written; nil for no parent. Also
-- returns why the parent cannot be notified, if it cannot: its child ends all the same.
local function parent_of(key)
  local fine, found = pcall(function()
    local text = call("HGET", key, "parent")
    if not text then
      return nil
    end
    local parent = cjson.decode(text)
    call("SCARD", parent.queueKey .. ":" .. parent.id .. ":dependencies")
    call("ZCARD", parent.queueKey .. ":waiting-children")
    return parent
  end)
  if fine then
    return found
  end
  return nil, type(found) == "table" and found.err or tostring(found)
end

-- Returns whether the job's options discard failed jobs.
local function is_not_kept(key)
  local fine, opts = pcall(cjson.decode, peek(key, "opts") or "")
  local kept = fine and type(opts) == "table" and opts.removeOnFail
  return kept == true or kept == 0 or (type(kept) == "table" and kept.count == 0)
end

-- Ends a job that was already taken out of its list.
local function settle_cancelled(key, id, from, now, reason)
  local parent, untold = parent_of(key)
  local stamp = string.format("%.0f", now)
  local window = call("HGET", key, "deid")
  local removed = is_not_kept(key)
  local facts = from ~= "active" and read_attempt(key, P) or nil
  if from == "waiting-children" and call("HEXISTS", key, "ox:depth") == 1 and not call("HGET", key, "ats") then
    call("DEL", key .. ":dependencies") -- a replay runs the job again
  end
  if not removed then
    call("ZADD", P .. "failed", stamp, id)
    call("HSET", key, "failedReason", reason, "finishedOn", stamp, "ox:category", as.category)
    if as.dead then
      call("HSET", key, "ox:dead", as.dead)
    end
    note_settled(key, id, from, stamp, reason)
    call("HDEL", key, "defa")
    if untold then
      call("HSET", key, "ox:untold", untold)
    end
  end
  if window then
    pcall(close_window, P, window, id, now)
  end
  if parent then
    child_failed(parent, key, reason, now)
  end
  if removed then
    local parent_key = peek(key, "parentKey")
    if parent_key and string.find(parent_key, "~gates:", 1, true) and call("EXISTS", parent_key) == 1 then
      call("HSET", parent_key, "ox:ended", as.state) -- what its dependents need to know
    end
    delete_data(key)
    if parent and parent_key and parent_key ~= "" then
      detach_child(parent_key, key)
    end
  end
  local entry = call("XADD", P .. "events", "MAXLEN", "~", max_events(P), "*",
    "event", "failed", "jobId", id, "failedReason", reason, "prev", from)
  record_attempt(facts, entry, id, "failed", stamp, reason, nil, as.category, nil, as.state)
  return entry
end

-- Notifies the worker that has a lease of this token; false if it is none of ours and cannot be notified.
local function notify_worker(id, token, starts, reason, force)
  local client = string.match(token, "^(%x+):%d+$")
  if not client or #client ~= 16 then
    return false
  end
  -- Workers hear requests for jobs in lanes where they receive those for the base queue.
  local base = call("HGET", P .. "meta", "ox:lanes")
  local place = (base and base ~= "+" and base or P) .. "ox:cancel:" .. client
  call("ZADD", place, 0, cjson.encode({ id = id, starts = tonumber(starts) or 0, reason = reason, force = force }))
  call("PEXPIRE", place, REQUEST_LIFE)
  return true
end

local function cancel_running(key, id, now, reason, force)
  local token, starts = call("GET", key .. ":lock"), call("HGET", key, "ats")
  if not force then
    if token and not notify_worker(id, token, starts, reason, false) then
      return -14
    end
    -- Also for the next worker that claims the job, if this one is lost.
    call("HSET", key, "ox:cancel", reason)
    return 2
  end
  local facts = read_attempt(key)
  if call("LREM", P .. "active", -1, id) == 0 then
    return -3
  end
  call("DEL", key .. ":lock")
  call("SREM", P .. "stalled", id)
  count_attempt(key, unpack(call("HMGET", key, "atm", "attemptsMade"), 1, 2))
  if token then
    notify_worker(id, token, starts, reason, true)
  end
  local entry = settle_cancelled(key, id, "active", now, reason)
  record_attempt(facts, entry, id, "failed", string.format("%.0f", now), reason, nil, as.category, nil, as.state)
  wake_now(P, read_gate(P)) -- there is room for another
  return 1
end

-- Whether a job is the next run of a scheduler that still exists: without it the scheduler would stop.
local function is_coming_run(key, id)
  local scheduler = peek(key, "rjk")
  local at = scheduler and call("ZSCORE", P .. "repeat", scheduler)
  return at and id == "repeat:" .. scheduler .. ":" .. at
end

-- Returns 1 cancelled, 2 its worker was asked, -1 no such job, -3 it has ended, -8 it is the next run of a schedule,
-- -14 its worker is none of ours, so only force can end it. `taken` names the list that it was already taken out of.
local function cancel_one(id, now, reason, force, taken)
  local key = P .. id
  if taken then
    settle_cancelled(key, id, taken, now, reason)
    return 1
  end
  if call("EXISTS", key) == 0 then
    return -1
  end
  if call("ZSCORE", P .. "completed", id) or call("ZSCORE", P .. "failed", id) then
    return -3
  end
  if is_coming_run(key, id) then
    return -8
  end
  for _, state in ipairs({ "prioritized", "delayed", "waiting-children" }) do
    if call("ZREM", P .. state, id) == 1 then
      settle_cancelled(key, id, state, now, reason)
      return 1
    end
  end
  if call("EXISTS", key .. ":lock") == 1 or call("LPOS", P .. "active", id) then
    return cancel_running(key, id, now, reason, force)
  end
  for _, list in ipairs({ "wait", "paused" }) do
    if call("LREM", P .. list, -1, id) > 0 then
      settle_cancelled(key, id, "waiting", now, reason)
      return 1
    end
  end
  return -3
end
