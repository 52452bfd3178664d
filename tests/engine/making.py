"""Claimed jobs without a server, for the parts of the engine that need none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from oxcart.broker.bullmq import codec
from oxcart.broker.bullmq.claimed import BullMQClaim
from oxcart.broker.capabilities import BULLMQ
from oxcart.broker.clock import ServerClock
from oxcart.engine.handler import Handler, RunKind
from oxcart.engine.running import RunningJob
from oxcart.model.options import JobOptions

NOW = 1_700_000_000_000


class NoBroker:
    """Records the calls of a handler to its queue."""

    queue = base = "q"
    capabilities = BULLMQ
    sealer = None
    clock = ServerClock(lambda: NOW)

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.logs = self

    async def set_progress(self, job_id: str, progress: Any) -> None:
        self.calls.append(("progress", job_id, progress))

    async def append(self, job_id: str, lines: list[str], keep: int) -> int:
        self.calls.append(("log", job_id, lines, keep))
        return len(lines)

    async def update_data(self, job_id: str, data: Any) -> None:
        self.calls.append(("data", job_id, data))


def make_job(
    data: Any = None,
    *,
    job_id: str = "1",
    name: str = "n",
    starts: int = 1,
    fields: dict[str, str] | None = None,
    handler: Handler | None = None,
    opts: dict[str, Any] | None = None,
    state: Any = None,
    broker: Any = None,
    **options: Any,
) -> RunningJob:
    """Makes a claimed job; ``opts`` are raw options of a peer instead of our own."""
    if opts is None:
        raw, extras = codec.encode_options(JobOptions.build(**options))
        more = dict(zip(extras[::2], extras[1::2], strict=True))
    else:
        raw, more = json.dumps(opts).encode(), {}
    hashed = {b"name": name.encode(), b"data": json.dumps(data).encode(), b"opts": raw}
    hashed |= {key.encode(): value.encode() for key, value in (more | (fields or {})).items()}
    claim = BullMQClaim(job_id, f"token:{starts}", starts, NOW, hashed)
    there: Any = broker or NoBroker()
    job = RunningJob(there, claim, "worker-1", state)
    job.handler = handler
    return job


def make_handler(function: Callable[..., Any], *, run: RunKind | None = None, **options: Any) -> Handler:
    name = getattr(function, "__name__", "n")
    return Handler(name, function, run=run, options=JobOptions.build(**options))
