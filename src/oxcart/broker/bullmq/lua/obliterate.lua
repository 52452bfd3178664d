-- Removes what is left of a queue when its jobs are gone: schedulers, counters, settings, events, indexes.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 how many schedulers to remove at most
-- Returns  { 0 nothing is left, 1 there are more schedulers, 2 jobs were added meanwhile, -1 not paused;
--          how many schedulers were removed }
-- Keeps    a queue that holds a job, or that is not paused, is not touched
-- include: base

local answer = remembered()
if answer then
  return answer
end
if call("HEXISTS", KEYS[1], "paused") == 0 then
  return { -1, 0 }
end
local step = tonumber(ARGV[3])
local ids = call("ZRANGE", P .. "repeat", 0, step - 1)
if #ids > 0 then
  local records = {}
  for i, id in ipairs(ids) do
    records[i] = P .. "repeat:" .. id
  end
  call("UNLINK", unpack(records))
  call("ZREM", P .. "repeat", unpack(ids))
  if #ids == step then
    return remember({ 1, #ids })
  end
end
if call("EXISTS", P .. "wait", P .. "paused", P .. "active", P .. "prioritized", P .. "delayed",
    P .. "waiting-children", P .. "completed", P .. "failed") > 0 then
  return remember({ 2, #ids })
end
call("UNLINK", P .. "meta", P .. "events", P .. "id", P .. "pc", P .. "marker", P .. "limiter", P .. "delay",
  P .. "priority", P .. "stalled", P .. "stalled-check", P .. "metrics:completed", P .. "metrics:completed:data",
  P .. "metrics:failed", P .. "metrics:failed:data", P .. "ox:held", P .. "ox:parked", P .. "ox:opening",
  P .. "ox:turns", P .. "ox:groups", P .. "ox:swept",
  P .. "ox:expiring", P .. "ox:callbacks", P .. "ox:gates", P .. "ox:attempts", P .. "ox:readers", P .. "ox:workers",
  P .. "ox:listeners", P .. "ox:crowded", P .. "ox:alive", P .. "ox:away", P .. "ox:totals")
return remember({ 0, #ids })
