"""Random commands on the real server, compared with a small reference model after every step.

A failure prints its seed; ``OXCART_STEPS_SEED=… pytest tests/formal/test_random_steps.py`` runs the same
steps again. ``make random-steps`` runs many more.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from oxcart.model.state import TRANSITIONS
from tests.formal.machine import Life
from tests.servers import ValkeyServer

STEPS = 50
EXAMPLES = int(os.environ.get("OXCART_STEPS", "50"))


@pytest.mark.timeout(900)  # a failure is shrunk to the fewest steps that show it
def test_two_thousand_random_steps_equal_the_model(valkey: ValkeyServer) -> None:
    chosen = int(os.environ.get("OXCART_STEPS_SEED", random.randrange(2**32)))
    Life.server = valkey
    Life.steps = 0
    print(f"OXCART_STEPS_SEED={chosen}")
    seed(chosen)(Life)
    options = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        print_blob=True,
        phases=(Phase.generate,) if "OXCART_STEPS_RAW" in os.environ else (Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Life, settings=options, _min_steps=STEPS - 1)
    assert Life.steps >= 2000
    allowed = {(move.source, move.target) for move in TRANSITIONS}
    assert Life.seen <= allowed
    unseen = sorted(f"{source} to {target}" for source, target in allowed - Life.seen)
    # Commands that need other jobs, and rare commands, may be missing in a few examples.
    assert len(unseen) <= (14 if EXAMPLES > 50 else 20), unseen
