-- The ground every script stands on: the namespace's key prefix, and the memory that makes a call repeatable.
--
-- KEYS[1] is always the waiting list, `<namespace>:jobs:waiting`. Every other key of the namespace is made
-- from its prefix, so all keys a script touches are in the slot of KEYS[1].
-- ARGV[1], ARGV[2] are always (slot, number) of the call: an empty slot means that the call need not be
-- repeatable.

local call = redis.call
local P = string.sub(KEYS[1], 1, -13)
local WAITING = KEYS[1]

-- How long an answer is remembered for a caller that lost the reply, in seconds.
local MEMORY = "600"

local slot_key = ARGV[1] ~= "" and (P .. "ox:call:" .. ARGV[1]) or nil

-- A key that is never there: while a slot moves to another node of a cluster, a script that asks for it fails
-- before it began, and not in mid-work.
local NEVER = P .. "ox:call"

local function asked_of_slot(...)
  local answer = redis.pcall(...)
  if type(answer) == "table" and answer.err then
    local moving = string.find(answer.err, "non local key", 1, true)
    error({ err = moving and "TRYAGAIN the slot is on its way to another node" or answer.err })
  end
  return answer
end

-- What this very call answered before, or nil. SETRANGE with nothing to write is refused when the server is
-- out of memory, so that a script runs whole or not at all.
local function remembered()
  if slot_key then
    local kept = asked_of_slot("GET", slot_key)
    if kept then
      local colon = string.find(kept, ":", 1, true)
      local last, this = tonumber(string.sub(kept, 1, colon - 1)), tonumber(ARGV[2])
      if last == this then
        asked_of_slot("EXISTS", NEVER)
        return cmsgpack.unpack(string.sub(kept, colon + 1))
      elseif last > this then
        error({ err = "OXSTALE call " .. ARGV[2] .. " came after call " .. last .. " of its slot" })
      end
    end
  end
  asked_of_slot("SETRANGE", NEVER, 0, "")
  return nil
end

local function remember(answer)
  if slot_key then
    call("SET", slot_key, ARGV[2] .. ":" .. cmsgpack.pack(answer), "EX", MEMORY)
  end
  return answer
end

-- The events of a type go to a stream of ours; the document has none.
local function tell(job_type, event, id, ...)
  call("XADD", P .. "ox:events:" .. job_type, "MAXLEN", "~", "10000", "*", "event", event, "jobId", id, ...)
end

-- What was learned of a job: { type, lane, priority, max concurrent, max per minute, position }, or nil.
local function facts_of(id)
  local packed = call("HGET", P .. "ox:facts", id)
  return packed and cmsgpack.unpack(packed) or nil
end
