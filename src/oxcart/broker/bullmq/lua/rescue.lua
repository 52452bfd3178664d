-- Puts back jobs that are in none of the queue's lists and sets, as a peer's rename can leave them.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 "1" to only check, then ids, newest job first
-- Returns  one code per id: 1 put back (or lost, when only checking), 0 not lost, -1 no job of this id,
--          -2 leased, so its worker may still finish it, -3 it has ended
-- Events   `waiting` per job that was put back
-- Keeps    a job that is in any state is left alone: check and insert are one step. Lost jobs are
--          older than waiting ones, so they go to the front, or to the front of their priority
-- include: base gate insert states

local answer = remembered()
if answer then
  return answer
end
local codes = {}
local only_look = ARGV[3] == "1"
local gate = not only_look and read_gate(P)

local function put_back(id)
  local key = P .. id
  if call("TYPE", key).ok ~= "hash" then
    return -1
  end
  local job = call("HMGET", key, "name", "timestamp", "opts", "finishedOn", "priority", "delay")
  if not job[1] or not job[2] or not job[3] then
    return -1
  elseif is_in_a_state(id) then
    return 0
  elseif call("EXISTS", key .. ":lock") == 1 then
    return -2
  elseif job[4] then
    return -3
  elseif only_look then
    return 1
  end
  if job[6] and job[6] ~= "0" then
    call("HSET", key, "delay", 0)
  end
  insert_front(P, gate, id, tonumber(job[5]) or 0)
  wake_now(P, gate)
  call("XADD", P .. "events", "MAXLEN", "~", max_events(P), "*", "event", "waiting", "jobId", id)
  return 1
end

for i = 4, #ARGV do
  local fine, code = pcall(put_back, ARGV[i])
  codes[#codes + 1] = fine and code or -1
end
return remember(codes)
