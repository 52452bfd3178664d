-- Drops notes of custom ids whose jobs are gone: one step. Peers remove jobs without dropping the notes.
--
-- KEYS[1]  meta of the base queue
-- ARGV     1 "", 2 "", 3 the cursor, "0" at the beginning, 4 about how many notes to check
-- Returns  { the next cursor, "0" at the end; how many notes were dropped }
-- include: base lanes

remembered()
local answer = call("HSCAN", P .. "ox:ids", ARGV[3], "COUNT", ARGV[4])
local notes, gone = answer[2], {}
for i = 1, #notes, 2 do
  if call("EXISTS", lane_prefix(P, notes[i + 1]) .. notes[i]) == 0 then
    gone[#gone + 1] = notes[i]
  end
end
if #gone > 0 then
  call("HDEL", P .. "ox:ids", unpack(gone))
end
return { answer[1], #gone }
