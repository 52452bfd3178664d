-- Replaces sealed values of jobs, each only if it has not changed since it was read.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "" (safe to repeat as it is), then per value: "h" for a hash field or "s" for a string,
--          key, field, the value as it was read, the new one
-- Returns  per value 1, or 0 if it was changed meanwhile or is gone
-- Keeps    a value that is gone stays gone
-- include: base resealing

remembered()
local done = {}
for i = 3, #ARGV, 5 do
  done[#done + 1] = swap(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
end
return done
