-- What every script needs: the namespace's key prefix, and the journal that makes a call repeatable.
--
-- KEYS[1] is always the waiting list, `<namespace>:jobs:waiting`. Every other key of the namespace begins
-- with its prefix, so all keys a script touches are in the slot of KEYS[1].
-- ARGV[1], ARGV[2] are always (slot, number) of the call: an empty slot means that the call need not be
-- repeatable.

local call = redis.call
local P = string.sub(KEYS[1], 1, -13)
local WAITING = KEYS[1]

-- include: memory

-- include: time

-- Returns how many events of a type a pipeline wants to keep, or false while none reads it; read once per call.
local read_types = {}
local function is_read(job_type)
  if read_types[job_type] == nil then
    read_types[job_type] = call("HGET", P .. "ox:reading:" .. job_type, "keep")
  end
  return read_types[job_type]
end

-- Events of a type go to a stream of ours; the specification defines none.
local function emit(job_type, event, id, ...)
  local most = is_read(job_type) or "10000"
  call("XADD", P .. "ox:events:" .. job_type, "MAXLEN", "~", most, "*", "event", event, "jobId", id, ...)
end

-- Returns the facts of a job: { type, lane, priority, max concurrent, max per minute, position }, or nil.
local function facts_of(id)
  local packed = call("HGET", P .. "ox:facts", id)
  return packed and cmsgpack.unpack(packed) or nil
end
