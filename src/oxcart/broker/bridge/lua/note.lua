-- Records jobs that other clients have ended and that our index never contained.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", then per job: id, type
-- Returns  how many were recorded
-- Keeps    the record of a completed job is removed with its result
-- include: base lanes leaving forgetting

asked_of_slot("SETRANGE", NEVER, 0, "")
local now = tonumber(server_ms())
local noted = 0
for at = 3, #ARGV, 2 do
  local status = call("GET", P .. "jobs:status:" .. ARGV[at])
  if OVER[status] and call("HEXISTS", P .. "ox:facts", ARGV[at]) == 0 then
    note_type(ARGV[at + 1])
    noted = noted + note_foreign_end(ARGV[at], ARGV[at + 1], status, now)
  end
end
return noted
