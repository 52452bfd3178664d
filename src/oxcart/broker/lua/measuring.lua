-- Measures a stream on the server.

-- Returns the reply of both protocols' stride.lua: the facts of a stream, and of one stride. The stride begins behind
-- an id, reaches up to another, and has a bounded number of entries (0 for none). `life` is the mark of the stream's
-- generation, or false.
local function measure_stride(key, life, after, upto, most)
  local facts = { length = 0, ["entries-added"] = 0, ["last-generated-id"] = "0-0", ["max-deleted-entry-id"] = "0-0" }
  local info = redis.pcall("XINFO", "STREAM", key)
  if not info.err then
    for i = 1, #info, 2 do
      facts[info[i]] = info[i + 1]
    end
  end
  local first, found = facts["first-entry"], {}
  if most ~= "0" and facts.length > 0 then
    found = call("XRANGE", key, "(" .. after, upto, "COUNT", most)
  end
  return {
    facts["entries-added"], facts.length, first and first[1] or "", facts["last-generated-id"],
    facts["max-deleted-entry-id"], life or "", #found, #found > 0 and found[#found][1] or "",
  }
end
