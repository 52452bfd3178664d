-- Cancels the jobs of one state that match a filter: one step.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 state: wait, paused, active, prioritized, delayed or waiting-children
--          4 how many jobs to look at, or more while none is selected, 5 how many to skip, which earlier steps left
--          6 the filter as JSON (parts/filter.lua), 7 now or "" (time.lua), 8 reason, 9 "1" for force
--          10 "1" to select only, 11 how many may be cancelled in this step
-- Returns  { how many jobs were left in place, 1 while there may be more, how many cancelled, how many asked,
--          how many refused because a peer's worker runs them, ids that were selected... }
-- Events   as cancel
-- Keeps    as cancel. A step walks a state from its newest end: workers take from the other end, so no job is missed
-- include: base gate insert store attempts parent removal deduplication history cancelling filter timing

local answer = remembered()
if answer then
  return answer
end
local GONE = "ox:gone"
local state, key = ARGV[3], P .. ARGV[3]
local step, left = tonumber(ARGV[4]), tonumber(ARGV[5])
local filter = read_filter(ARGV[6], "timestamp")
local now, reason, force, dry = tonumber(time_of(ARGV[7])), ARGV[8], ARGV[9] == "1", ARGV[10] == "1"
local most = tonumber(ARGV[11])
local is_list = state == "wait" or state == "paused"

local chosen, stayed, marked = {}, 0, 0
local cancelled, asked, refused = 0, 0, 0

local function take(i, id)
  if not is_list then
    local code = cancel_one(id, now, reason, force)
    if code == 2 then
      asked = asked + 1
    elseif code == -14 then
      refused = refused + 1
    end
    return code == 1
  end
  -- Marked in place, and removed together with the others of this step: one search per job would be slow.
  call("LSET", key, left + i - 1, GONE)
  if not pcall(cancel_one, id, now, reason, force, "waiting") and not call("ZSCORE", P .. "failed", id) then
    call("LSET", key, left + i - 1, id)
    return false
  end
  marked = marked + 1
  return true
end

local ids
repeat
  left = left + (ids and #ids or 0)
  ids = call((is_list or state == "active") and "LRANGE" or "ZREVRANGE", key, left, left + step - 1)
  for i, id in ipairs(ids) do
    local fine, gone = true, false
    if #chosen < most and is_chosen(filter, P .. id) and (state == "active" or not is_coming_run(P .. id, id)) then
      chosen[#chosen + 1] = id
      if not dry then
        fine, gone = pcall(take, i, id)
      end
    end
    if fine and gone then
      cancelled = cancelled + 1
    else
      stayed = stayed + 1
    end
  end
until not passes(#chosen, #ids, step)
if marked > 0 then
  call("LREM", key, marked, GONE)
end
local more = #ids == step and 1 or 0
return remember({ stayed, more, cancelled, asked, refused, unpack(chosen) })
