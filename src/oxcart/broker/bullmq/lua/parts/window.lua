-- Deduplication windows at an add: `de:<name>` holds the id of the job that owns the window.

local function emit_deduplicated(prefix, name, kept, dropped)
  local events, limit = prefix .. "events", max_events(prefix)
  call("XADD", events, "MAXLEN", "~", limit, "*", "event", "debounced", "jobId", kept, "debounceId", name)
  call("XADD", events, "MAXLEN", "~", limit, "*", "event", "deduplicated", "jobId", kept,
    "deduplicationId", name, "deduplicatedJobId", dropped)
end

local function has_time(rule)
  return rule.ttl and rule.ttl > 0
end

-- A window that keeps the last add has no time limit: it must stay open as long as its owner is active.
local function open_window(key, id, rule)
  if has_time(rule) and not rule.keepLastIfActive then
    call("SET", key, id, "PX", string.format("%.0f", rule.ttl))
  else
    call("SET", key, id)
  end
end

-- Stores an add under `dn:<name>` while the owner is active; the owner's end makes it a job. Only the last add is
-- kept. Returns whether it was stored.
local function keep_last(prefix, rule, owner, job)
  if not rule.keepLastIfActive or not call("LPOS", prefix .. "active", owner) then
    return false
  end
  local function put(list, field, value)
    list[#list + 1] = field
    list[#list + 1] = value
  end
  local fields = { "name", job.name, "data", job.data, "opts", job.opts, "jid", job.id }
  local ours = {}
  for i = 1, #job.extras, 2 do
    local field, value = job.extras[i], job.extras[i + 1]
    if field == "parentKey" then
      put(fields, "pk", value)
      put(fields, "pdk", value .. ":dependencies")
    elseif field == "parent" then
      put(fields, "pd", value)
    elseif field == "rjk" then
      put(fields, "rjk", value)
    elseif string.sub(field, 1, 3) == "ox:" then
      put(ours, field, value)
    end
  end
  if #ours > 0 then
    put(fields, "ox:fields", cmsgpack.pack(ours))
  end
  local kept_key = prefix .. "dn:" .. rule.id
  call("DEL", kept_key)
  call("HSET", kept_key, unpack(fields))
  call("PERSIST", prefix .. "de:" .. rule.id)
  emit_deduplicated(prefix, rule.id, owner, job.id)
  return true
end

-- Decides whether a job is added. Returns nil if it is, and then it owns the window; otherwise the id of the job that
-- owns it.
local function enter_window(prefix, rule, job)
  local key, kept_key = prefix .. "de:" .. rule.id, prefix .. "dn:" .. rule.id
  local owner = call("GET", key)
  if not owner then
    open_window(key, job.id, rule)
    return nil
  end
  if call("PTTL", key) == -1 and call("EXISTS", prefix .. owner) == 0 then
    -- Its owner is gone, so nothing else would close it.
    call("DEL", kept_key)
    open_window(key, job.id, rule)
    return nil
  end
  if not rule.replace then
    if not keep_last(prefix, rule, owner, job) then
      if rule.extend and has_time(rule) then
        open_window(key, owner, rule)
      end
      emit_deduplicated(prefix, rule.id, owner, job.id)
    end
    return owner
  end
  if not call("ZSCORE", prefix .. "delayed", owner) then
    keep_last(prefix, rule, owner, job)
    return owner
  end
  detach_from_living_parent(prefix .. owner)
  call("ZREM", prefix .. "delayed", owner)
  delete_data(prefix .. owner)
  call("XADD", prefix .. "events", "*", "event", "removed", "jobId", owner, "prev", "delayed")
  emit_deduplicated(prefix, rule.id, job.id, owner)
  call("DEL", kept_key)
  if has_time(rule) and not rule.extend and not rule.keepLastIfActive then
    call("SET", key, job.id, "KEEPTTL")
  else
    open_window(key, job.id, rule)
  end
  return nil
end
