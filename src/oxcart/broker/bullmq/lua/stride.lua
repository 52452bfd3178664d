-- Measures one stride of a stream on the server, so that a reader can plan without fetching the entries.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 the stream's suffix, 4 the id after which the stride begins, 5 the last id it may
--          reach ("+" for any), 6 how many entries at most (0 requests only the facts)
-- Returns  { entries ever added, entries kept, first id kept or "", last id ever given, highest id deleted
--          explicitly, mark of the stream's generation or "", entries in the stride, id of the last of them or "" };
--          the first two are 0 if there is no stream
-- include: base measuring

local life = call("HGET", KEYS[1], "ox:life")
return measure_stride(P .. ARGV[3], life, ARGV[4], ARGV[5], ARGV[6])
