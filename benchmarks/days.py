"""Writes a day of a queue as its workers would have written it: events and records of attempts.

One job in twenty is retried and one in a hundred fails. Jobs begin one after the other, evenly over
yesterday.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from tests.servers import ValkeyServer

from oxcart.broker.export import ATTEMPTS, EVENTS

_DAY_MS = 86_400_000
#: The longest time from the add to the end of a job, in ms; the next job begins later.
_LONGEST = 160
#: Jobs whose entries one call sends.
_CHUNK = 2000

Fields = dict[str, Any]


def fill(server: ValkeyServer, queue: str, events: int) -> None:
    """Writes events, and a record of every attempt.

    Raises:
        ValueError: There are too many events for a day.
    """
    jobs = max(1, events * 100 // 416)  # 4 events a job, 3 more for one in 20, 1 more for one in 100
    apart = _DAY_MS // jobs
    if apart < _LONGEST:
        raise ValueError(f"events must be at most {4 * _DAY_MS // _LONGEST}, got {events}")
    midnight = time.time_ns() // 1_000_000 // _DAY_MS * _DAY_MS - _DAY_MS
    keys = {suffix: f"bull:{queue}:{suffix}" for suffix in (EVENTS, ATTEMPTS)}
    left = events
    with server.client() as store:
        store.hset(f"bull:{queue}:meta", "opts.maxLenEvents", str(10 * events))
        for start in range(0, jobs + _CHUNK, _CHUNK):
            pipe = store.pipeline(transaction=False)
            for number in range(start, start + _CHUNK):
                for at, (suffix, fields) in enumerate(_life(number)):
                    if left == 0:
                        break
                    left -= suffix == EVENTS
                    if suffix == EVENTS:
                        entry_id = f"{midnight + number * apart + fields.pop('ms')}-{at}"
                    pipe.xadd(keys[suffix], fields, id=entry_id)
            pipe.execute()
            if left == 0:
                return


def _life(number: int) -> Iterator[tuple[str, Fields]]:
    """Yields the entries of a job in order; a record has the id of the event before it."""
    job = {"jobId": f"job-{number}"}
    record = {**job, "name": "n", "starts": "1", "began": "20", "ended": "30", "worker": "host:1:0"}
    yield EVENTS, {"ms": 0, "event": "added", **job, "name": "n"}
    yield EVENTS, {"ms": 0, "event": "waiting", **job}
    yield EVENTS, {"ms": 20, "event": "active", **job, "prev": "waiting"}
    if number % 20 == 0:
        yield EVENTS, {"ms": 30, "event": "delayed", **job, "delay": "130"}
        failure = {
            "category": "temporary",
            "failedReason": f"the connection to 10.0.0.{number % 256} was lost",
        }
        yield ATTEMPTS, {"event": "retried", **record, **failure}
        yield EVENTS, {"ms": 130, "event": "waiting", **job, "prev": "delayed"}
        yield EVENTS, {"ms": 135, "event": "active", **job, "prev": "waiting"}
    if number % 100 == 1:
        reason = {"failedReason": f"user {number} is unknown"}
        yield EVENTS, {"ms": 150, "event": "failed", **job, **reason, "prev": "active"}
        yield ATTEMPTS, {"event": "failed", **record, **reason, "category": "permanent"}
        yield EVENTS, {"ms": 150, "event": "retries-exhausted", **job, "attemptsMade": "1"}
    else:
        done = {"returnvalue": '{"ok":true}', "prev": "active"}
        yield EVENTS, {"ms": 150, "event": "completed", **job, **done}
        yield ATTEMPTS, {"event": "completed", **record}
