-- Reads jobs together with their states.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", then ids
-- Returns  for each id its state, in the words of peers or "unknown", and its fields (none if there is no job);
--          "elsewhere" if it may be in one of the queue's lanes
-- Keeps    searches only `active`, and only for a job that was started. The ready list may be long; a job that is
--          in no set, not active and not ended must be in it
-- include: base

local sets = { "completed", "failed", "delayed", "prioritized", "waiting-children" }

local function place_of(id, fields)
  for _, set in ipairs(sets) do
    if call("ZSCORE", P .. set, id) then
      return set
    end
  end
  local started, ended
  for i = 1, #fields, 2 do
    started = started or fields[i] == "processedOn"
    ended = ended or fields[i] == "finishedOn"
  end
  if started and call("LPOS", P .. "active", id) then
    return "active"
  end
  return ended and "unknown" or "waiting"
end

local answer, has_lanes = {}, nil
for i = 3, #ARGV do
  local fields = redis.pcall("HGETALL", P .. ARGV[i])
  fields = fields.err and {} or fields
  if #fields > 0 then
    answer[#answer + 1] = place_of(ARGV[i], fields)
  else
    has_lanes = has_lanes or call("HGET", KEYS[1], "ox:lanes") or "-"
    answer[#answer + 1] = has_lanes == "+" and "elsewhere" or "unknown"
  end
  answer[#answer + 1] = fields
end
return answer
