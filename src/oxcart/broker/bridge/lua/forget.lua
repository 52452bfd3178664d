-- Removes jobs from the side index that are no longer in the list: other clients have claimed or ended them.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", then the ids
-- Returns  how many were in the index
-- Keeps    our record of a job's runs is removed with the job (forgetting.lua)
-- include: base lanes leaving forgetting

asked_of_slot("SETRANGE", NEVER, 0, "")
local now = tonumber(server_ms())
local gone = 0
for at = 3, #ARGV do
  gone = gone + call("SISMEMBER", P .. "ox:listed", ARGV[at])
  forget_job(ARGV[at], now)
end
return gone
