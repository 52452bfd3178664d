-- Measures one stride of a type's events on the server, so that a reader can plan without fetching them.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 type, 4 the id after which the stride begins, 5 the last id it may reach ("+" for any),
--          6 how many entries at most (0 requests only the facts)
-- Returns  { entries ever added, entries kept, first id kept or "", last id ever given, highest id deleted
--          explicitly, mark of the stream's generation or "", entries in the stride, id of the last of them or "" };
--          the first two are 0 if there is no stream
-- include: base measuring

local life = call("HGET", P .. "ox:reading:" .. ARGV[3], "life")
return measure_stride(P .. "ox:events:" .. ARGV[3], life, ARGV[4], ARGV[5], ARGV[6])
