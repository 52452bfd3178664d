"""Durations of leases and numbers of faults: short in CI, full length in `make chaos`."""

from __future__ import annotations

import os

#: `OXCART_CHAOS=full` selects leases of 30 s and more repetitions.
FULL = os.environ.get("OXCART_CHAOS") == "full"

#: Seconds that a lease lasts. Stalled checks come as often.
LEASE = 30.0 if FULL else 2.0

#: Seconds between renewals; None for the default of half a lease. A CI machine may pause for a second or two
#: at any moment, so its leases are renewed often enough to outlive most pauses.
RENEW = None if FULL else LEASE / 5

#: Answers swallowed by the test of lost answers.
CUTS = 10_000 if FULL else 1_000

#: Seconds that a busy machine may take beyond a bound given in leases. The bounds are measured at full
#: length; CI only checks that the event happens at all.
GRACE = 3.0 if FULL else 15.0

#: Seconds within which work must resume after an outage of under ten seconds.
RESUMED = 5.0 if FULL else 30.0

#: Longest wait for any signal that the test does not delay itself.
LIMIT = 60.0 + 4 * LEASE
