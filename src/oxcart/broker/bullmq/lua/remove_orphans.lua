-- Removes jobs that are in none of the queue's lists and sets.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 "1" to only check, then ids
-- Returns  one code per id: 1 removed (or an orphan, when only checking), 0 it is in a state, -1 no job of this id,
--          -2 leased, so its worker may still finish it
-- Keeps    a job that is in any state is left alone: check and removal are one step
-- include: base gate insert removal sweeping states

local answer = remembered()
if answer then
  return answer
end

local function remove(id)
  local key = P .. id
  if call("TYPE", key).ok ~= "hash" then
    return -1
  end
  local job = call("HMGET", key, "name", "timestamp", "opts", "parentKey", "deid")
  if not job[1] or not job[2] or not job[3] then
    return -1
  elseif is_in_a_state(id) then
    return 0
  elseif call("EXISTS", key .. ":lock") == 1 then
    return -2
  end
  if ARGV[3] ~= "1" then
    sweep_job(id, job[4], job[5])
  end
  return 1
end

local codes = {}
for i = 4, #ARGV do
  local fine, code = pcall(remove, ARGV[i])
  codes[#codes + 1] = fine and code or -1
end
return remember(codes)
