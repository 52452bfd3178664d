-- Removes a schedule, and its next run if that is still delayed.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 id
-- Returns  1 removed, 0 there is none
-- Events   `removed` for the run
-- include: base gate insert removal

local answer = remembered()
if answer then
  return answer[1]
end
local scheduler = ARGV[3]
local at = call("ZSCORE", P .. "repeat", scheduler)
if at then
  local id = "repeat:" .. scheduler .. ":" .. at
  if call("ZREM", P .. "delayed", id) == 1 then
    delete_data(P .. id)
    call("XADD", P .. "events", "*", "event", "removed", "jobId", id, "prev", "delayed")
  end
end
local removed = call("ZREM", P .. "repeat", scheduler)
if removed == 1 then
  call("DEL", P .. "repeat:" .. scheduler)
end
remember({ removed })
return removed
