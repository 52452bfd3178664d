-- Records the end of an attempt in the words of the model, for jobs that keep a history (field `ox:history`).
--
-- `ox:attempts` holds a line per ended attempt, newest last: a JSON list of the number of its start, began, ended,
-- worker, outcome, category, code, message, stack.

-- Longest part kept of a message and of a stack: its end, because the failure is there.
local LONGEST_MESSAGE, LONGEST_TRACE, MOST_ATTEMPTS = 1000, 2000, 20

-- Returns how an attempt ended and the job's new state, as a flat list. `stacks` is the JSON list of all
-- stacks, or nil; `was` holds the job's `ats`, `processedOn`, `pb` and `ox:attempts`.
local function history_of(history, was, outcome, to, why, time, message, stacks, category, code)
  local stack
  if stacks and stacks ~= "" then
    local fine, all = pcall(cjson.decode, stacks)
    stack = fine and type(all) == "table" and all[#all]
  end
  local line = cjson.encode({
    was[1] or "", was[2] or "", time, was[3] or "", outcome, category or "", code or "",
    string.sub(message or "", 1, LONGEST_MESSAGE),
    type(stack) == "string" and string.sub(stack, -LONGEST_TRACE) or "",
  })
  local lines = line .. "\n"
  if was[4] then
    lines = was[4] .. lines
    local _, many = string.gsub(lines, "\n", "")
    if many > MOST_ATTEMPTS then
      lines = string.sub(lines, string.find(lines, "\n", 1, true) + 1)
    end
  end
  return { "ox:history", noted(history, time, "running", to, was[3], why), "ox:attempts", lines }
end

-- Writes that flat list at once.
local function note_end(key, history, outcome, to, why, time, message, category)
  local was = call("HMGET", key, "ats", "processedOn", "pb", "ox:attempts")
  call("HSET", key, unpack(history_of(history, was, outcome, to, why, time, message, nil, category)))
end
