-- Prolongs the sign that a worker checks for stalled jobs.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 ms without a sign after which the server counts as having been away
-- Returns  1, or 0 where the last sign has run out: a check is due, which waits for renewals first
-- Keeps    needs no memory, so that a full server does not look like an outage
-- include: base outage

remembered(true)
return stay_alive(P, ARGV[3]) and 1 or 0
