-- Measures one stride of a stream where it lies, so that a reader can plan without fetching the entries.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 the stream's suffix, 4 the id that the stride begins after, 5 the last id it may
--          reach ("+" for any), 6 how many entries at most (0 asks for the facts alone)
-- Returns  { entries ever added, entries kept, first id kept or "", last id ever given, highest id deleted by
--          hand, mark of the stream's life or "", entries in the stride, id of the last of them or "" }; the
--          first two are 0 where there is no stream
-- include: base

local key = P .. ARGV[3]
local facts = { length = 0, ["entries-added"] = 0, ["last-generated-id"] = "0-0", ["max-deleted-entry-id"] = "0-0" }
local told = redis.pcall("XINFO", "STREAM", key)
if not told.err then
  for i = 1, #told, 2 do
    facts[told[i]] = told[i + 1]
  end
end
local first = facts["first-entry"]
local stride, last = 0, ""
if ARGV[6] ~= "0" and facts.length > 0 then
  local found = call("XRANGE", key, "(" .. ARGV[4], ARGV[5], "COUNT", ARGV[6])
  stride = #found
  last = stride > 0 and found[stride][1] or ""
end
return {
  facts["entries-added"], facts.length, first and first[1] or "", facts["last-generated-id"],
  facts["max-deleted-entry-id"], call("HGET", KEYS[1], "ox:life") or "", stride, last,
}
