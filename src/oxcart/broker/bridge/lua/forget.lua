-- Takes jobs out of the side index that are in the list no more: other clients have taken or ended them.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, then the ids
-- Returns  how many were there
-- Keeps    what we wrote down of a job's runs goes with the job; until then its facts stay, by which it is found.
--          Nothing is lost by it: an id that is in the list after all is found by the next pass
-- include: base lanes

asked_of_slot("SETRANGE", NEVER, 0, "")
local OVER = { completed = true, dead = true, failed = true }
local gone = 0
for at = 3, #ARGV do
  local id = ARGV[at]
  if call("SISMEMBER", P .. "ox:listed", id) == 1 then
    gone = gone + 1
  end
  unlist_job(id, facts_of(id))
  local runs = P .. "ox:job:" .. id
  if call("EXISTS", P .. "jobs:data:" .. id) == 0 then
    call("DEL", runs)
    if not OVER[call("GET", P .. "jobs:status:" .. id)] then
      call("DEL", P .. "jobs:status:" .. id)
    end
  elseif OVER[call("GET", P .. "jobs:status:" .. id)] then
    call("EXPIRE", runs, 86400)
  end
  if call("PTTL", runs) ~= -1 then
    call("HDEL", P .. "ox:facts", id)
  end
end
return gone
