-- Extends the sign of life by which workers notice an outage.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 ms without a sign of life after which the server counts as having been away
-- Returns  1, or 0 if the last sign has expired: a check is due, which waits for renewals first
-- include: base outage

asked_of_slot("EXISTS", NEVER)
return prolong_sign(P, ARGV[3]) and 1 or 0
