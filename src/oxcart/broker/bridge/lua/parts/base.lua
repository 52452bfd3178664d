-- The ground every script stands on: the namespace's key prefix, and the memory that makes a call repeatable.
--
-- KEYS[1] is always the waiting list, `<namespace>:jobs:waiting`. Every other key of the namespace is made
-- from its prefix, so all keys a script touches are in the slot of KEYS[1].
-- ARGV[1], ARGV[2] are always (slot, number) of the call: an empty slot means that the call need not be
-- repeatable.

local call = redis.call
local P = string.sub(KEYS[1], 1, -13)
local WAITING = KEYS[1]

-- include: memory

-- The events of a type go to a stream of ours; the document has none.
local function tell(job_type, event, id, ...)
  call("XADD", P .. "ox:events:" .. job_type, "MAXLEN", "~", "10000", "*", "event", event, "jobId", id, ...)
end

-- What was learned of a job: { type, lane, priority, max concurrent, max per minute, position }, or nil.
local function facts_of(id)
  local packed = call("HGET", P .. "ox:facts", id)
  return packed and cmsgpack.unpack(packed) or nil
end
