"""The pauses of the garbage collector, in a process of their own: the settings hold for a whole process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from oxcart.http.application import app
from oxcart.http.pauses import THRESHOLDS, shorten_pauses

before = len(gc.get_objects())
shorten_pauses()
assert gc.get_threshold() == THRESHOLDS
assert gc.get_freeze_count() > 50_000, gc.get_freeze_count()
assert len(gc.get_objects()) < before / 100  # what a full collection looks at
print("shorter")
"""


def test_a_full_collection_leaves_out_what_the_start_has_made() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.stdout, done.stderr) == ("shorter\n", "")
