-- Extends the sign of life by which workers notice an outage.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 ms without a sign of life after which the server counts as having been away
-- Returns  1, or 0 if the last sign has expired: a stalled check is due, which waits for renewals first
-- Keeps    needs no memory, so that a full server does not look like an outage
-- include: base outage

remembered(true)
return stay_alive(P, ARGV[3]) and 1 or 0
