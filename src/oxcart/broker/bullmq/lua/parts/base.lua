-- What every script needs: the queue's key prefix, and the journal that makes a call repeatable.
--
-- KEYS[1] is always the queue's meta key. Every other key of the queue begins with its prefix, so all
-- keys a script touches are in the slot of KEYS[1].
-- ARGV[1], ARGV[2] are always (slot, number) of the call: an empty slot means that the call need not be
-- repeatable.

local call = redis.call
local P = string.sub(KEYS[1], 1, -5)

-- include: memory

-- Returns one field of a hash, or nil, also if the key is no hash. An id in a list may name any key, and an
-- unreadable one must not stop the work on its neighbours.
local function peek(key, field)
  local value = redis.pcall("HGET", key, field)
  return type(value) == "string" and value or nil
end

-- include: time

-- Returns a stored count, 0 if there is none, or nil if it is no whole number that Lua counts exactly.
local function count_of(text)
  if not text or text == "" or text == "0" then
    return 0
  end
  return #text <= 15 and not string.find(text, "%D") and tonumber(text) or nil
end

-- Returns how many attempts have ended: the larger of `atm` and `attemptsMade`, the counter of older peers.
local function attempts_made(ended, legacy)
  local count = count_of(ended) or 0
  return legacy and math.max(count, count_of(legacy) or 0) or count
end

-- Counts an ended attempt. `atm` continues the count of an older peer; a value that is no count stays as it is.
local function count_attempt(key, ended, legacy)
  if not count_of(ended) then
    return
  elseif legacy then
    call("HSET", key, "atm", attempts_made(ended, legacy) + 1)
    call("HDEL", key, "attemptsMade")
  else
    call("HINCRBY", key, "atm", 1)
  end
end

-- Returns whether a pipeline's deadline is in the future. Reads the clock only if there is a deadline.
local function is_ahead(till)
  till = tonumber(till or nil)
  return till ~= nil and till > tonumber(server_ms())
end

-- The queue that was checked last, and whether a pipeline reads it.
local asked_of, attached

-- Returns whether a pipeline reads the queue, the queue's limits per type and key, the key prefix under which they
-- are stored (for a lane that of its base queue), and the queue's retention.
local function attached_and_limits(prefix)
  local meta = call("HMGET", prefix .. "meta", "ox:until", "ox:limits", "ox:lanes", "ox:retention")
  asked_of, attached = prefix, is_ahead(meta[1])
  local base = meta[3]
  if base and base ~= "+" then
    return attached, call("HGET", base .. "meta", "ox:limits"), base, meta[4]
  end
  return attached, meta[2], prefix, meta[4]
end

local function is_attached(prefix)
  if asked_of ~= prefix then
    asked_of, attached = prefix, is_ahead(call("HGET", prefix .. "meta", "ox:until"))
  end
  return attached
end

-- A pipeline needs more events than peers keep, and every constructor of a Node queue resets the number:
-- this restores it.
local function asserted(prefix, kept, keep, till)
  if kept == "" or (kept ~= "10000" and kept and not count_of(kept)) then -- the default of every peer
    return nil -- no length: write it again
  end
  if keep and kept and tonumber(kept) < (count_of(keep) or 0) and is_ahead(till) then
    call("HSET", prefix .. "meta", "opts.maxLenEvents", keep)
    return keep
  end
  return kept
end

-- How long a queue that Oxcart creates keeps completed and failed jobs whose job and worker do not say it, in seconds.
local RETENTION = "86400:2592000"

-- Returns the approximate length at which the event stream is kept; stores the default if no peer did so yet. Then the
-- queue is new, and gets its retention.
local known_max_events = {}
local function max_events(prefix)
  local kept = known_max_events[prefix]
  if not kept then
    local meta = call("HMGET", prefix .. "meta", "opts.maxLenEvents", "ox:keep", "ox:until")
    kept = asserted(prefix, meta[1], meta[2], meta[3])
    if not kept then
      kept = "10000"
      if meta[1] then
        call("HSET", prefix .. "meta", "opts.maxLenEvents", kept)
      else
        call("HSET", prefix .. "meta", "opts.maxLenEvents", kept, "ox:retention", RETENTION)
      end
    end
    known_max_events[prefix] = kept
  end
  return kept
end

local function trim_events()
  call("XTRIM", P .. "events", "MAXLEN", "~", max_events(P))
end

-- Appends to a job's transitions and drops the oldest if there are too many: then the text begins with "+".
-- Kept only for jobs that have the field `ox:history`; the words are the model's (model/state.py).
local function noted(lines, time, from, to, worker, why)
  worker = worker or ""
  if string.find(worker, "%c") then
    worker = string.gsub(worker, "%c", " ")
  end
  lines = table.concat({ lines .. time, from, to, worker, why }, "\t") .. "\n"
  if #lines > 1500 then -- 50 lines are never shorter
    local _, many = string.gsub(lines, "\n", "")
    if many > 50 then
      lines = "+" .. string.sub(lines, string.find(lines, "\n", 1, true) + 1)
    end
  end
  return lines
end

-- Returns whether a job is in `delayed` because a limit holds it back (parts/limiting.lua). Formally it is ready:
-- it was ready before, and has no delay of its own.
local function is_held_back(key, history, delay)
  if delay ~= "0" then
    return false
  elseif history == "" then
    local fine, opts = pcall(cjson.decode, peek(key, "opts") or "")
    return not (fine and type(opts) == "table" and (tonumber(opts.delay) or 0) > 0)
  end
  return string.find(history, "\tscheduled\t[^\t]*\t[^\t]*\n$") ~= nil
end

-- Splits a job's full key: its id is the text behind the last colon; the rest, colon included, is the prefix of its
-- queue.
local function split_key(job_key)
  local id = string.match(job_key, "([^:]*)$")
  return string.sub(job_key, 1, #job_key - #id), id
end
