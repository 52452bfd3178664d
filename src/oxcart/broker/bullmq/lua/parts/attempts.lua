-- What a pipeline wants to know of an ended attempt and no event carries: one record in the stream `ox:attempts`,
-- under the id of the event that ended the attempt. A job that ends without one has one too. Only while a pipeline is
-- attached; else nothing is written. Records of a queue stand in the order of its events.

-- Read with it: the rules per type and key, where there are any (parts/limiting.lua).
local ATTACHED, LIMITED, LIMITED_AT = attached_and_limits(P)
-- A stack longer than this is cut at its beginning: what failed is at its end.
local LONGEST_STACK = 4000
local LONGEST_REASON = 1000

-- The rule by which a schedule made the job, as JSON.
local function rule_of(opts)
  local fine, known = pcall(cjson.decode, opts or "")
  local rule = fine and type(known) == "table" and known["repeat"]
  return type(rule) == "table" and cjson.encode(rule) or nil
end

-- Reads what a record needs, before the job may be deleted. `unrun` is the prefix of a job's queue, perhaps another
-- one, where the job ends while no worker runs it.
local function read_attempt(key, unrun)
  local prefix = unrun or P
  if not is_attached(prefix) then
    return nil
  end
  local told = call("HMGET", key, "name", "processedOn", "pb", "ats", "parent", "ox:corr", "ox:tags")
  if string.sub(key, #prefix + 1, #prefix + 7) == "repeat:" then
    told[8] = rule_of(call("HGET", key, "opts"))
  end
  if unrun then
    told[2], told[3], told[4] = false, false, false -- those of an attempt before
  end
  return told
end

local function newest_stack(text)
  local fine, stacks = pcall(cjson.decode, text or "")
  local newest = fine and type(stacks) == "table" and stacks[#stacks]
  return type(newest) == "string" and string.sub(newest, -LONGEST_STACK) or nil
end

-- An error here must not touch the attempt, which has ended: it costs the record alone. `state` is the formal one,
-- which the event lacks; `prefix` is that of another queue than this call's.
local function record_attempt(told, entry_id, id, outcome, time, reason, stack, category, code, state, prefix)
  if not told then
    return
  end
  local fields = { "event", outcome, "jobId", id, "ended", time }
  local function add(name, value)
    if value and value ~= "" then
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
  end
  add("name", told[1])
  add("began", told[2])
  add("worker", told[3])
  add("starts", told[4])
  if told[5] and not string.find(told[5], '~gates"', 1, true) then -- those who wait for a job are not its parent
    add("parent", told[5])
  end
  add("corr", told[6])
  add("tags", told[7])
  add("rule", told[8])
  add("state", state)
  add("failedReason", reason and string.sub(reason, 1, LONGEST_REASON))
  add("category", category)
  add("code", code)
  add("stack", stack and newest_stack(stack))
  prefix = prefix or P
  redis.pcall("XADD", prefix .. "ox:attempts", "MAXLEN", "~", max_events(prefix), entry_id, unpack(fields))
end
