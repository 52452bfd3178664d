-- Detaches a pipeline from a type's events. When the last reader leaves, the state from before the first is restored.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 type, 4 the reader's name, 5 now or "" (time.lua)
-- Returns  how many readers are left
-- include: base readers

asked_of_slot("SETRANGE", NEVER, 0, "")
local key = P .. "ox:reading:" .. ARGV[3]
call("HDEL", key, "reader:" .. ARGV[4])
return live_readers(key, tonumber(time_of(ARGV[5])))
