-- Cancels jobs in any state; running jobs are asked to end, or ended by force.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 now or "" (time.lua), 4 reason, 5 "1" for force, then ids
-- Returns  one code per id: 1 cancelled, 2 its worker was asked, -1 no such job, -3 it has ended, -8 the next run of a
--          schedule, -14 its worker is a peer's, or an error text if the server refused that job alone
-- Events   `failed` per cancelled job; those of its parent's policy
-- Keeps    a cancelled job is in `failed` with `ox:category` "cancelled". Force deletes the lease, so the end of that
--          attempt is refused
-- include: base gate insert store attempts parent removal deduplication history cancelling

local answer = remembered()
if answer then
  return answer
end
local now, reason, force = tonumber(time_of(ARGV[3])), ARGV[4], ARGV[5] == "1"
local codes = {}
for i = 6, #ARGV do
  local fine, code = pcall(cancel_one, ARGV[i], now, reason, force)
  codes[#codes + 1] = fine and code or (type(code) == "table" and code.err or tostring(code))
end
return remember(codes)
