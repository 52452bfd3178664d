-- Finds active jobs whose worker is gone: the lock expired, or its worker's last heartbeat is too old.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 ms for which no other check may begin, 4 cursor, "" to begin, 5 how many,
--          6 ms without a sign of life after which the server counts as having been away, "" to skip that,
--          7 ms that workers then need to renew
-- Returns  { cursor, ids that are lost, ids that no worker of ours has leased }; the cursor is "0" at the end, or
--          "busy" if another check runs, followed by the ms to wait instead of the ids
-- Keeps    after an outage no job is lost before every healthy worker has had the time to renew;
--          a job of another client must be found so twice, a second apart: that client may be about to end it;
--          uses the server's clock, because the two checks may come from machines with different clocks
-- include: base holders outage

asked_of_slot("SETRANGE", NEVER, 0, "")
local now, cursor = tonumber(server_ms()), ARGV[4]
if cursor == "" then
  local guard = P .. "ox:checking"
  if ARGV[6] ~= "" and must_wait(ARGV[6]) then
    call("SET", guard, server_ms() .. ":" .. ARGV[7], "PX", ARGV[7])
    return { "busy", tonumber(ARGV[7]), {} }
  end
  if not call("SET", guard, server_ms(), "NX", "PX", ARGV[3]) then
    local set_at, grace = string.match(call("GET", guard) or "", "^(%d+):?(%d*)$")
    local left, longest = call("PTTL", guard), math.max(10 * ARGV[3], 60000, tonumber(grace) or 0)
    -- After the server's clock was set back a guard lasts longer by that step: it was set in the future, or it lasts
    -- longer than any check sets it.
    if (tonumber(set_at) or 0) <= now and left >= 0 and left <= longest then
      return { "busy", left, {} }
    end
    call("SET", guard, server_ms(), "PX", ARGV[3])
  end
  call("DEL", P .. "ox:away")
  call("ZREMRANGEBYSCORE", P .. "ox:suspects", "-inf", now - 60000)
  cursor = "0"
end
local answer = call("SSCAN", P .. "jobs:active", cursor, "COUNT", ARGV[5])
local lost, foreign = {}, {}
for _, id in ipairs(answer[2]) do
  local gone = is_abandoned(id, now)
  local ours = call("HEXISTS", P .. "ox:held", id) == 1
  if not ours then
    foreign[#foreign + 1] = id
  end
  if gone and ours then
    lost[#lost + 1] = id
  elseif gone then
    call("ZADD", P .. "ox:suspects", "NX", now, id)
    if now - tonumber(call("ZSCORE", P .. "ox:suspects", id)) >= 1000 then
      lost[#lost + 1] = id
    end
  elseif not ours then
    call("ZREM", P .. "ox:suspects", id)
  end
end
return { answer[1], lost, foreign }
