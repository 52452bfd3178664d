"""How long leases last here and how often faults are repeated: short in CI, full length in `make chaos`."""

from __future__ import annotations

import os

#: `OXCART_CHAOS=full` selects leases of 30 s and more repetitions.
FULL = os.environ.get("OXCART_CHAOS") == "full"

#: Seconds that a lease lasts. Stalled checks come as often.
LEASE = 30.0 if FULL else 1.0

#: Answers swallowed by the test of lost answers.
CUTS = 10_000 if FULL else 1_000

#: Room for a busy machine, in seconds: what is allowed beyond a bar that speaks of leases.
GRACE = 3.0

#: Longest wait for any signal that the test itself does not put off.
LIMIT = 20.0 + 4 * LEASE
