-- Applies the end of a child to its parent, possibly in another queue of the same slot.

-- The gates (parts/gates.lua) that this call has opened: { prefix of their queue, id }.
local opened = {}

-- Releases a parent: first its delay applies, then its priority; it goes in front of the others.
local function release_parent(prefix, id, now)
  if string.sub(prefix, -7) == "~gates:" then
    opened[#opened + 1] = { prefix, id }
  end
  local asked = call("HMGET", prefix .. id, "priority", "delay", "ox:history")
  local delay, stamp = tonumber(asked[2]) or 0, string.format("%.0f", now)
  call("HSET", prefix .. id, delay > 0 and "ox:moved" or "ox:ready", stamp, unpack(asked[3] and { "ox:history",
    noted(asked[3], stamp, "pending", delay > 0 and "delayed" or "scheduled", "",
      delay > 0 and "a delay was asked for" or "its dependencies have ended") } or {}))
  if delay > 0 then
    local due = now + delay
    call("ZADD", prefix .. "delayed", due * TICK, id)
    call("XADD", prefix .. "events", "*", "event", "delayed", "jobId", id, "delay", string.format("%.0f", due))
    wake_later(prefix)
    return
  end
  insert_waiting(prefix, read_gate(prefix), id, tonumber(asked[1]) or 0, true)
  call("XADD", prefix .. "events", "*", "event", "waiting", "jobId", id, "prev", "waiting-children")
end

local function release_if_waiting(prefix, id, now)
  if call("EXISTS", prefix .. id) == 1 and call("ZREM", prefix .. "waiting-children", id) == 1 then
    release_parent(prefix, id, now)
  end
end

local function release_if_childless(prefix, id, now)
  if call("SCARD", prefix .. id .. ":dependencies") == 0 then
    release_if_waiting(prefix, id, now)
  end
end

-- A child whose failure fails its parent: the parent is marked, and the worker that claims it next fails it. A parent
-- that waits for children or is delayed is released at once, so that this happens soon.
local function doom_parent(prefix, id, child_key, now)
  local key = prefix .. id
  if call("EXISTS", key) == 0 then
    return
  end
  local reason = "child " .. child_key .. " failed"
  if call("ZREM", prefix .. "waiting-children", id) == 1 then
    call("HSET", key, "defa", reason)
    release_parent(prefix, id, now)
  elseif call("ZREM", prefix .. "delayed", id) == 1 then
    call("HSET", key, "delay", 0, "defa", reason)
    release_parent(prefix, id, now)
  elseif not call("ZSCORE", prefix .. "failed", id) then
    call("HSET", key, "defa", reason)
  end
end

local function child_completed(parent_key, parent_prefix, parent_id, child_key, value, now)
  if call("SREM", parent_key .. ":dependencies", child_key) == 1 then
    call("HSET", parent_key .. ":processed", child_key, value)
    release_if_childless(parent_prefix, parent_id, now)
  end
end

-- `parent` is the decoded JSON in the child's hash; its flags define the effect of a failure. Without a flag the child
-- stays a dependency, and the parent waits until the child is retried or removed.
local function child_failed(parent, child_key, reason, now)
  if not (parent.fpof or parent.cpof or parent.idof or parent.rdof) then
    return
  end
  local prefix = parent.queueKey .. ":"
  local key = prefix .. parent.id
  if call("SREM", key .. ":dependencies", child_key) == 0 then
    return
  end
  if parent.fpof then
    call("ZADD", key .. ":unsuccessful", now, child_key)
    doom_parent(prefix, parent.id, child_key, now)
  elseif parent.cpof then
    call("HSET", key .. ":failed", child_key, reason)
    release_if_waiting(prefix, parent.id, now)
  else
    release_if_childless(prefix, parent.id, now)
    if parent.idof then
      call("HSET", key .. ":failed", child_key, reason)
    end
  end
end
