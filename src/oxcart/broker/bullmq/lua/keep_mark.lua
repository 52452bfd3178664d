-- Keeps or removes the mark of a client, unless another client has it.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 name of the mark, 4 the client's token, 5 ms for which to keep it, 0 to remove it
-- Returns  1, or 0 if the client has the mark no longer
-- include: base

local mark = P .. ARGV[3]
if call("GET", mark) ~= ARGV[4] then
  return 0
elseif ARGV[5] == "0" then
  return call("DEL", mark)
end
return call("PEXPIRE", mark, ARGV[5])
