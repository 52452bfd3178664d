-- Measures one stride of a type's events where they lie, so that a reader can plan without fetching them.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 type, 4 the id that the stride begins after, 5 the last id it may reach ("+" for any),
--          6 how many entries at most (0 asks for the facts alone)
-- Returns  { entries ever added, entries kept, first id kept or "", last id ever given, highest id deleted by
--          hand, mark of the stream's life or "", entries in the stride, id of the last of them or "" }; the
--          first two are 0 where there is no stream
-- include: base

local key = P .. "ox:events:" .. ARGV[3]
local known = { length = 0, ["entries-added"] = 0, ["last-generated-id"] = "0-0", ["max-deleted-entry-id"] = "0-0" }
local answer = redis.pcall("XINFO", "STREAM", key)
if not answer.err then
  for i = 1, #answer, 2 do
    known[answer[i]] = answer[i + 1]
  end
end
local found = {}
if ARGV[6] ~= "0" and known.length > 0 then
  found = call("XRANGE", key, "(" .. ARGV[4], ARGV[5], "COUNT", ARGV[6])
end
return {
  known["entries-added"], known.length, known["first-entry"] and known["first-entry"][1] or "",
  known["last-generated-id"], known["max-deleted-entry-id"],
  call("HGET", P .. "ox:reading:" .. ARGV[3], "life") or "", #found, #found > 0 and found[#found][1] or "",
}
