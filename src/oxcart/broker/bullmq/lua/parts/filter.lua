-- Selects jobs by a filter: a JSON object. A key that it lacks matches every job.
--
-- names       list: the job's name is one of them
-- categories  list: `ox:category` is one of them
-- reason      text in lower case: the failure or its code contains it, in any case of ASCII letters
-- tags        object: the job has all of these tags with these values
-- correlation text: `ox:corr` is this
-- since, before  ms: the time in the field that the caller passes

local FILTERED = { "name", "ox:category", "ox:tags", "ox:corr" }

local function one_of(list, value)
  for _, each in ipairs(list) do
    if each == value then
      return true
    end
  end
  return false
end

local function has_tags(wanted, text)
  local fine, tags = pcall(cjson.decode, text or "")
  if not fine or type(tags) ~= "table" then
    return false
  end
  for name, value in pairs(wanted) do
    if tags[name] ~= value then
      return false
    end
  end
  return true
end

local function has_reason(key, wanted)
  for _, text in ipairs(call("HMGET", key, "failedReason", "ox:code")) do
    if text and string.find(string.lower(text), wanted, 1, true) then
      return true
    end
  end
  return false
end

-- `time_field` is the hash field that `since` and `before` compare.
local function read_filter(text, time_field)
  local filter = text ~= "" and cjson.decode(text) or {}
  filter.time_field = time_field
  return filter
end

local function is_chosen(filter, key)
  local job = redis.pcall("HMGET", key, FILTERED[1], FILTERED[2], FILTERED[3], FILTERED[4], filter.time_field)
  if job.err or (not job[1] and call("EXISTS", key) == 0) then
    return false
  end
  if filter.names and not one_of(filter.names, job[1]) then
    return false
  end
  if filter.categories and not one_of(filter.categories, job[2] or "") then
    return false
  end
  if filter.reason and not has_reason(key, filter.reason) then
    return false
  end
  if filter.tags and not has_tags(filter.tags, job[3]) then
    return false
  end
  if filter.correlation and job[4] ~= filter.correlation then
    return false
  end
  local at = tonumber(job[5] or nil) or 0
  if filter.since and at < filter.since then
    return false
  end
  return not filter.before or at <= filter.before
end
