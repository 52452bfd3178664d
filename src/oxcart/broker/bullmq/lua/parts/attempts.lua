-- Records ended attempts for a pipeline: one record in the stream `ox:attempts`, with what no event carries.
-- The record has the id of the event that ended the attempt. A job that ends without an attempt gets a record too.
-- Nothing is written unless a pipeline is attached. Records of a queue are in the order of its events.

-- Read with it: the rules per type and key, if there are any (parts/limiting.lua), and the queue's retention.
local ATTACHED, LIMITED, LIMITED_AT, KEPT = attached_and_limits(P)
-- A longer stack loses its beginning: the failure is at its end.
local LONGEST_STACK = 4000
local LONGEST_REASON = 1000
-- The version of the program whose worker finishes attempts with this call; nil if it has none.
local VERSION

-- The rule by which a schedule made the job, as JSON.
local function rule_of(opts)
  local fine, known = pcall(cjson.decode, opts or "")
  local rule = fine and type(known) == "table" and known["repeat"]
  return type(rule) == "table" and cjson.encode(rule) or nil
end

-- Reads the fields of a record, before the job may be deleted. `unrun` is given if the job ends while no worker runs
-- it: the prefix of the job's queue, perhaps another one.
local function read_attempt(key, unrun)
  local prefix = unrun or P
  if not is_attached(prefix) then
    return nil
  end
  local facts = call("HMGET", key, "name", "processedOn", "pb", "ats", "parent", "ox:corr", "ox:tags", "ox:limit",
    "ox:ran")
  local ran = table.remove(facts)
  facts.steps = ran and not unrun and string.match(ran, "^" .. (facts[4] or "0") .. "\t(.*)$")
  if string.sub(key, #prefix + 1, #prefix + 7) == "repeat:" then
    facts[9] = rule_of(call("HGET", key, "opts"))
  end
  if unrun then
    facts[2], facts[3], facts[4] = false, false, false -- those of the previous attempt
  end
  return facts
end

local function newest_stack(text)
  local fine, stacks = pcall(cjson.decode, text or "")
  local newest = fine and type(stacks) == "table" and stacks[#stacks]
  return type(newest) == "string" and string.sub(newest, -LONGEST_STACK) or nil
end

-- An error here must not affect the attempt, which has ended: only the record is lost. `state` is the formal state,
-- which the event lacks; `prefix` is that of a queue other than this call's.
local function record_attempt(facts, entry_id, id, outcome, time, reason, stack, category, code, state, prefix)
  if not facts then
    return
  end
  local fields = { "event", outcome, "jobId", id, "ended", time }
  local function add(name, value)
    if value and value ~= "" then
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
  end
  add("name", facts[1])
  add("began", facts[2])
  add("worker", facts[3])
  add("starts", facts[4])
  if facts[5] and not string.find(facts[5], '~gates"', 1, true) then -- the gate of its dependents is not its parent
    add("parent", facts[5])
  end
  add("corr", facts[6])
  add("tags", facts[7])
  add("key", facts[8])
  add("rule", facts[9])
  add("steps", facts.steps)
  add("version", facts[2] and VERSION)
  add("state", state)
  add("failedReason", reason and string.sub(reason, 1, LONGEST_REASON))
  add("category", category)
  add("code", code)
  add("stack", stack and newest_stack(stack))
  prefix = prefix or P
  redis.pcall("XADD", prefix .. "ox:attempts", "MAXLEN", "~", max_events(prefix), entry_id, unpack(fields))
end
