"""Durations of leases and numbers of faults: short in CI, full length in `make chaos`."""

from __future__ import annotations

import os

#: `OXCART_CHAOS=full` selects leases of 30 s and more repetitions.
FULL = os.environ.get("OXCART_CHAOS") == "full"

#: Seconds that a lease lasts. Stalled checks come as often.
LEASE = 30.0 if FULL else 2.0

#: Seconds between renewals; None for the half of a lease that is usual. A machine of CI may be away for a
#: second or two, at any place: its leases are renewed so often that they outlive most of that.
RENEW = None if FULL else LEASE / 5

#: Answers swallowed by the test of lost answers.
CUTS = 10_000 if FULL else 1_000

#: Room for a busy machine, in seconds: what is allowed beyond a bar that speaks of leases. The bars are
#: measured at full length; CI sees that what they speak of happens at all.
GRACE = 3.0 if FULL else 15.0

#: Seconds after the end of an outage of under ten seconds in which work must go on.
RESUMED = 5.0 if FULL else 30.0

#: Longest wait for any signal that the test itself does not put off.
LIMIT = 60.0 + 4 * LEASE
