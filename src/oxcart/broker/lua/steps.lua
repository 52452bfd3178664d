-- Durable steps and signals of a job, in the hash at `key`: a field `ox:step:<name>` per step; and signals that the
-- job has not received, as lines of the field `ox:signals`: the signal's name, a tab and its data as JSON.

local MOST_RAN = 1000

-- Stores a step. `ox:ran` names the present start and its steps, for the record of the attempt.
local function keep_step(key, name, record)
  local field = "ox:step:" .. name
  if call("HEXISTS", key, field) == 1 then
    call("HSET", key, field, record)
    return
  end
  local known = call("HMGET", key, "ats", "ox:ran")
  local begin = (known[1] or "0") .. "\t"
  local ran = known[2] and string.sub(known[2], 1, #begin) == begin and known[2] .. ", " or begin
  if #ran + #name <= MOST_RAN then
    call("HSET", key, field, record, "ox:ran", ran .. name)
  else
    call("HSET", key, field, record)
  end
end

-- Returns the signals of a job, and where the line of the oldest one of a name begins, or nil.
local function find_signal(key, name)
  local lines = call("HGET", key, "ox:signals") or ""
  return lines, string.find("\n" .. lines, "\n" .. name .. "\t", 1, true)
end

local function has_signal(key, name)
  local _, at = find_signal(key, name)
  return at ~= nil
end

-- Removes the oldest signal of a name; returns its data, or nil.
local function take_signal(key, name)
  local lines, at = find_signal(key, name)
  if not at then
    return nil
  end
  local stop = string.find(lines, "\n", at, true)
  local rest = string.sub(lines, 1, at - 1) .. string.sub(lines, stop + 1)
  if rest == "" then
    call("HDEL", key, "ox:signals")
  else
    call("HSET", key, "ox:signals", rest)
  end
  return string.sub(lines, at + #name + 1, stop - 1)
end

-- Stores a signal behind the others; returns false if they would have more than `most` bytes.
local function put_signal(key, name, body, most)
  local lines = call("HGET", key, "ox:signals") or ""
  if #lines + #name + #body + 2 > most then
    return false
  end
  call("HSET", key, "ox:signals", lines .. name .. "\t" .. body .. "\n")
  return true
end

-- Answers a wait: the record of a wait that is over, or of one that ends or begins now. The arguments are those of
-- receive_signal.lua, from the name of the wait on.
local function receive_signal(key, name, signal, begins, arrived, late)
  local record = call("HGET", key, "ox:step:" .. name)
  if record and string.sub(record, 1, 5) ~= "wait\t" then
    return record
  end
  local body = take_signal(key, signal)
  if body or late ~= "" then
    record = body and arrived .. "\n" .. body or late .. "\nnull"
    keep_step(key, name, record)
    call("HDEL", key, "ox:waits")
  elseif not record then
    record = begins .. "\nnull"
    keep_step(key, name, record)
  end
  return record
end

-- Prepares the steps of a job that an operator replays. A completed job begins anew; a failed one continues behind its
-- last step, and waits again for signals that were too late.
local function replay_steps(key, completed)
  local gone = {}
  for _, field in ipairs(call("HKEYS", key)) do
    if string.sub(field, 1, 8) == "ox:step:"
      and (completed or string.sub(call("HGET", key, field), 1, 8) == "timeout\t") then
      gone[#gone + 1] = field
    end
  end
  if #gone > 0 then
    call("HDEL", key, unpack(gone))
  end
end
