-- Closes or hands on the deduplication window of a job that ends.

-- Returns the fields of a kept add, its options, and our additional fields. Fails if they make no job.
local function read_kept(kept_key)
  local kept = call("HMGET", kept_key, "name", "data", "opts", "pk", "pd", "pdk", "rjk", "jid", "ox:fields")
  local opts = cjson.decode(kept[3])
  local extras = kept[9] and cmsgpack.unpack(kept[9]) or {}
  assert(kept[1] and kept[2] and (not kept[4] or kept[5]))
  assert(type(opts.de or {}) == "table" and type(extras) == "table")
  assert((opts.delay or 0) >= 0 and (opts.priority or 0) >= 0)
  return kept, opts, extras
end

-- An add of a peer that came while the owner was active, with keepLastIfActive, is stored under `dn:<name>`. When the
-- owner ends, it becomes a job, and only then gets the window. A record that makes no job is left as it is: it must not
-- keep the owner from ending.
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

-- A window without a time limit closes with its owner. A window with a limit stays open, and a key of this name that
-- is no window stays too.
local function close_window(prefix, name, id, now)
  local key = prefix .. "de:" .. name
  local left = call("PTTL", key)
  if left == 0 or (left == -1 and redis.pcall("GET", key) == id) then
    call("DEL", key)
  end
  requeue_kept(prefix, name, now)
end
