-- Lists the groups with waiting jobs, in the order of their names.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 "" for the first, else the group after which to begin, behind "g:", 4 how many at most
-- Returns  a flat list of group and number of its waiting jobs
-- Keeps    changes nothing. Jobs that were removed meanwhile count until a claim meets their notes
-- include: base buckets groups

remembered()
limit_at(P)
local last = ARGV[3] == "" and "[g:" or "(" .. ARGV[3] .. "\011"
local found = {}
for _ = 1, tonumber(ARGV[4]) do
  local note = call("ZRANGEBYLEX", PARKED, last, "(g;", "LIMIT", 0, 1)[1]
  if not note then
    break
  end
  local bucket = string.match(note, "^([^\n]*)")
  found[#found + 1] = string.sub(bucket, 3)
  found[#found + 1] = count_in(PARKED, bucket)
  last = "(" .. bucket .. "\011"
end
return found
