-- Ends jobs whose lifetime has expired, in any state, as dead letters.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 now or "" (time.lua), 4 reason, 5 grace in ms in which the worker of a running job may end it
-- Returns  how many were ended
-- Events   `failed` per job; those of its parent's policy
-- Keeps    an entry of `ox:expiring` whose job is gone or has ended is dropped. The lease of an expired job is deleted,
--          so the end of that attempt is refused
-- include: base gate insert store attempts parent removal deduplication history cancelling

remembered()
as.category, as.dead, as.state, as.why = "timeout", "lifetime", "dead_letter", "the lifetime is over"
local now, index = tonumber(time_of(ARGV[3])), P .. "ox:expiring"
-- The budget of a call, in list entries that it may search, as in recover.lua.
local budget = 22000
local search = call("LLEN", P .. "wait") + call("LLEN", P .. "paused") + call("LLEN", P .. "active")
local ended = 0
for _, id in ipairs(call("ZRANGEBYSCORE", index, "-inf", now, "LIMIT", 0, 100)) do
  local key = P .. id
  local overdue = now - tonumber(call("ZSCORE", index, id)) >= tonumber(ARGV[5])
  if overdue or call("EXISTS", key .. ":lock") == 0 then
    local fine, code = pcall(cancel_one, id, now, ARGV[4], true)
    if fine and code ~= -8 then
      call("ZREM", index, id)
      ended = ended + (code == 1 and 1 or 0)
    else
      call("ZADD", index, now + 60000, id) -- so that it does not block the others
    end
    budget = budget - search - 300
    if budget <= 0 then
      break
    end
  end
end
return ended
