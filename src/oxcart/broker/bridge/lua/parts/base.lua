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

-- Returns a stored list, or nil: what a peer has spoiled counts as absent, because a call that fails would fail again.
local function unpacked(packed)
  local fine, list = pcall(cmsgpack.unpack, packed or "")
  return fine and type(list) == "table" and list or nil
end

-- Returns the facts of a job: { type, lane, priority, max concurrent, max per minute, position }, or nil.
local function read_facts(packed)
  local facts = unpacked(packed)
  if facts and type(facts[1]) == "string" and type(facts[2]) == "string" and type(facts[3]) == "number"
    and type(facts[4]) == "number" and type(facts[5]) == "number" and type(facts[6]) == "number" then
    return facts
  end
  return nil
end

local function facts_of(id)
  return read_facts(call("HGET", P .. "ox:facts", id))
end
