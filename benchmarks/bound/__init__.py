"""The bare bound: one script call per 50 jobs that does only what the protocol demands.

It checks nothing, keeps no promise and serves only for a comparison: the part of a job's cost that no script
of the same protocol can avoid.
"""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

#: Jobs that a call claims and completes, and that a call adds.
BATCH, ADDED = 50, 1_000
_PREFIX = "bull:counted:"
_LEASE_MS = 30_000


def work(client: Any, kind: str, jobs: int) -> None:
    """Does the measured work through a client that does not decode."""
    add = client.register_script(_script("add"))
    process = client.register_script(_script("process"))
    at_once = 1 if kind == "add" else ADDED
    data = json.dumps({"text": "x" * 80, "n": 1})
    for begin in range(0, jobs, at_once):
        rows = [word for _ in range(min(at_once, jobs - begin)) for word in (str(uuid.uuid4()), data)]
        add(keys=[_PREFIX], args=[_now(), *rows])
    if kind != "process":
        return
    running: list[bytes] = []
    left = jobs
    while left or running:
        claimed = process(keys=[_PREFIX], args=[_now(), "token", _LEASE_MS, min(BATCH, left), *running])
        running = claimed[::2]
        left -= len(running)
    assert client.zcard(f"{_PREFIX}completed") == jobs


def _now() -> int:
    return round(time.time() * 1000)


def _script(name: str) -> str:
    return (Path(__file__).parent / f"{name}.lua").read_text("utf-8")
