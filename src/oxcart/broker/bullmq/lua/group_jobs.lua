-- Lists waiting jobs of a group in their order, and drops notes of jobs that went another way.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 group, 4 the note after which to begin, or "", 5 how many notes to look at
-- Returns  { the note to continue after, or "" at the end, ids... }
-- include: base buckets groups

remembered()
limit_at(P)
local bucket, many = "g:" .. ARGV[3], tonumber(ARGV[5])
local first = ARGV[4] == "" and "[" .. bucket .. "\n" or "(" .. ARGV[4]
local notes = call("ZRANGEBYLEX", PARKED, first, "(" .. bucket .. "\011", "LIMIT", 0, many)
local answer, stale = { #notes == many and notes[many] or "" }, {}
for _, note in ipairs(notes) do
  local id = read_note(bucket, note)
  if id then
    answer[#answer + 1] = id
  else
    stale[#stale + 1] = note
  end
end
if #stale > 0 then
  call("ZREM", PARKED, unpack(stale))
end
return answer
