-- What the end of a job means for the deduplication window that it owns.

-- The fields of a kept add, its options, and what an add of ours had beyond a peer's. Fails where they make no
-- job.
local function read_kept(kept_key)
  local kept = call("HMGET", kept_key, "name", "data", "opts", "pk", "pd", "pdk", "rjk", "jid", "ox:fields")
  local opts = cjson.decode(kept[3])
  local extras = kept[9] and cmsgpack.unpack(kept[9]) or {}
  assert(kept[1] and kept[2] and (not kept[4] or kept[5]))
  assert(type(opts.de or {}) == "table" and type(extras) == "table")
  assert((opts.delay or 0) >= 0 and (opts.priority or 0) >= 0)
  return kept, opts, extras
end

-- A peer's add that came while the owner was active and asked to keep the last one is stored under
-- `dn:<name>`; the owner's end makes it a job. Only then the window is handed on to it. A record that makes no
-- job is left as it is: the owner must not be kept by it.
local function requeue_kept(prefix, name, now)
  local kept_key = prefix .. "dn:" .. name
  if call("EXISTS", kept_key) == 0 then
    return
  end
  local readable, kept, opts, extras = pcall(read_kept, kept_key)
  if not readable then
    return
  end
  local count = call("INCR", prefix .. "id")
  local id = kept[8] or tostring(count)
  local window = opts.de
  if window and not window.keepLastIfActive and window.ttl and window.ttl > 0 then
    call("SET", prefix .. "de:" .. name, id, "PX", window.ttl)
  else
    call("SET", prefix .. "de:" .. name, id)
  end
  if kept[4] then
    extras[#extras + 1] = "parentKey"
    extras[#extras + 1] = kept[4]
    extras[#extras + 1] = "parent"
    extras[#extras + 1] = kept[5]
  end
  if kept[7] then
    extras[#extras + 1] = "rjk"
    extras[#extras + 1] = kept[7]
  end
  if window and window.id then
    extras[#extras + 1] = "deid"
    extras[#extras + 1] = window.id
  end
  local delay, priority = opts.delay or 0, opts.priority or 0
  store_job(prefix, id, kept[1], kept[2], kept[3], now, delay, priority, extras)
  if delay > 0 then
    insert_delayed(prefix, id, now, delay)
    wake_later(prefix)
  else
    insert_waiting(prefix, read_gate(prefix), id, priority, opts.lifo)
    call("XADD", prefix .. "events", "MAXLEN", "~", max_events(prefix), "*", "event", "waiting", "jobId", id)
  end
  if kept[6] then
    redis.pcall("SADD", kept[6], prefix .. id)
  end
  call("DEL", kept_key)
end

-- A window without a time limit closes with its owner; one with a limit runs on, and so does what is no window
-- but has its name.
local function close_window(prefix, name, id, now)
  local key = prefix .. "de:" .. name
  local left = call("PTTL", key)
  if left == 0 or (left == -1 and redis.pcall("GET", key) == id) then
    call("DEL", key)
  end
  requeue_kept(prefix, name, now)
end
