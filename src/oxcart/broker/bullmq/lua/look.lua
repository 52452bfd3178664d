-- Reads jobs with the places that they have.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", then ids
-- Returns  for each id its place, in the words of peers or "unknown", and its fields (none where there is no job)
-- Keeps    looks through `active` alone, and only for a job that was started: the ready list may be long, and where
--          a job is that is in no set, not active and not ended follows
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

local answer = {}
for i = 3, #ARGV do
  local fields = redis.pcall("HGETALL", P .. ARGV[i])
  fields = fields.err and {} or fields
  answer[#answer + 1] = #fields > 0 and place_of(ARGV[i], fields) or "unknown"
  answer[#answer + 1] = fields
end
return answer
