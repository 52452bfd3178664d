"""Metrics by a meter of OpenTelemetry, for those who push OTLP instead of scraping.

    Worker(emails, observer=MeterHook([emails]))

The names follow the messaging conventions where they have one. `oxcart.observe.metrics` is cheaper (a tally
instead of a histogram of the SDK) and has more; both may be used at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from oxcart.broker.port import Code, Outcome
from oxcart.engine.observer import Observer
from oxcart.engine.running import RunningJob
from oxcart.model.errors import MissingExtra, ReplyCode
from oxcart.observe.lengths import QueueLengths
from oxcart.observe.numbers import MOST_NAMES, OTHER, REFUSED, is_dead_letter, status_of

try:
    from opentelemetry import metrics
    from opentelemetry.metrics import CallbackOptions, Observation
except ImportError as error:
    raise MissingExtra("metrics by OpenTelemetry", "otel") from error

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from oxcart.engine.source import Consumable

log = logging.getLogger("oxcart.metrics")

#: Most seconds that an export waits for the lengths of the queues.
PATIENCE = 2.0
#: Seconds for which a reading serves all gauges of an export.
FRESH = 0.5

#: The gauges that are read from the server: name, unit and meaning.
_GAUGES = (
    ("oxcart.queue.jobs", "{job}", "Jobs of a queue by state"),
    ("oxcart.jobs.oldest_waiting", "s", "Age of the job that is ready for longest"),
    ("oxcart.jobs.unroutable", "{job}", "Jobs whose targets no registered worker fits"),
    ("oxcart.groups.waiting", "{group}", "Groups with waiting jobs"),
    ("oxcart.groups.jobs", "{job}", "Jobs that wait for their group's turn"),
    ("oxcart.groups.oldest_waiting", "s", "For how long the next job of a group has waited"),
    ("oxcart.clock.skew", "s", "How far the clock of the machine is ahead of the server's"),
)


class MeterHook(Observer):
    """An observer that records by a meter.

    Args:
        queues: The queues whose lengths are reported.
        meter_provider: Makes the meter; the global provider by default.

    Raises:
        MissingExtra: The package ``opentelemetry-api`` is not installed.
    """

    def __init__(
        self, queues: Sequence[Consumable] = (), *, meter_provider: MeterProvider | None = None
    ) -> None:
        meter = metrics.get_meter("oxcart", meter_provider=meter_provider)
        self._lengths = [QueueLengths(queue) for queue in queues]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._names: dict[str, set[str]] = {}
        self._duration = meter.create_histogram(
            "messaging.process.duration", "s", "Duration of an attempt, from its start to its outcome."
        )
        self._wait = meter.create_histogram(
            "oxcart.job.wait", "s", "Time from ready to the start of an attempt."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Jobs that were claimed."
        )
        self._calls = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Duration of a call that ends and claims jobs."
        )
        self._stalled = meter.create_counter(
            "oxcart.jobs.stalled", "{job}", "Jobs that were recovered from lost workers."
        )
        self._renewals = meter.create_counter("oxcart.leases.renewed", "{lease}", "Renewed leases.")
        self._lost = meter.create_counter(
            "oxcart.leases.failed", "{lease}", "Leases that could not be renewed, or were lost."
        )
        self._reconnects = meter.create_counter(
            "oxcart.reconnects", "{attempt}", "Attempts to reach a lost server."
        )
        self._workers = meter.create_up_down_counter("oxcart.workers", "{worker}", "Running workers.")
        self._retries = meter.create_counter("oxcart.jobs.retried", "{job}", "Attempts that are retried.")
        self._dead = meter.create_counter(
            "oxcart.jobs.dead", "{job}", "Jobs that used up their attempts or their lifetime."
        )
        for name, unit, text in _GAUGES:
            meter.create_observable_gauge(
                name,
                [partial(self._observe, name)],
                unit,
                f"{text}, the same from every process: take the max.",
            )
        self._seen: dict[str, list[Observation]] = {}
        self._seen_at = float("-inf")
        self._reading = threading.Lock()

    def job_started(self, job: RunningJob) -> None:
        """A handler is about to run."""
        if (waited := job.waited_ms) is not None:
            self._wait.record(waited / 1000, self._facts(job))

    def job_ended(self, job: RunningJob, outcome: Outcome, code: Code, seconds: float) -> None:
        """An attempt ended."""
        facts = self._facts(job)
        facts["oxcart.job.outcome"] = status_of(outcome) if code == ReplyCode.DONE else REFUSED
        if outcome.category:
            facts["error.type"] = outcome.category
        self._duration.record(seconds, facts)
        if code == ReplyCode.DONE:
            self._count_end(outcome, facts)

    def _count_end(self, outcome: Outcome, facts: dict[str, Any]) -> None:
        if is_dead_letter(outcome):
            self._dead.add(1, facts)
        elif facts["oxcart.job.outcome"] == "retried":
            self._retries.add(1, facts)

    def called(self, queue: str, ended: int, claimed: int, seconds: float) -> None:
        """A call ended attempts and claimed jobs."""
        facts = {"messaging.destination.name": queue, "messaging.operation.name": "claim"}
        self._calls.record(seconds, facts)
        if claimed:
            self._consumed.add(claimed, facts)

    def renewed(self, queue: str, leases: int, seconds: float) -> None:
        """Leases were renewed."""
        self._renewals.add(leases, {"messaging.destination.name": queue})

    def renewal_failed(self, queue: str, leases: int) -> None:
        """Leases could not be renewed."""
        self._lost.add(leases, {"messaging.destination.name": queue})

    def stalled(self, queue: str, job_ids: Sequence[str]) -> None:
        """Stalled jobs were recovered."""
        self._stalled.add(len(job_ids), {"messaging.destination.name": queue})

    def reconnecting(self) -> None:
        """An attempt is made to reach a lost server."""
        self._reconnects.add(1)

    def workers(self, change: int) -> None:
        """A worker started or ended; its event loop reads the lengths."""
        self._loop = asyncio.get_running_loop()
        self._workers.add(change)

    async def close(self) -> None:
        """Closes the connections that read the lengths."""
        await asyncio.gather(*(one.close() for one in self._lengths))

    def _facts(self, job: RunningJob) -> dict[str, Any]:
        known, name = self._names.setdefault(job.queue, set()), job.name
        if name not in known:
            # Any producer may make up names, and every series costs memory.
            if len(known) < MOST_NAMES:
                known.add(name)
            else:
                name = OTHER
        return {
            "messaging.destination.name": job.queue,
            "messaging.operation.name": "process",
            "oxcart.job.name": name,
        }

    def _observe(self, name: str, options: CallbackOptions) -> Iterable[Observation]:
        """Observes a gauge; called by the exporter, in a thread of its own.

        One reading serves all gauges of an export, so that a lost server delays it once.
        """
        loop = self._loop
        if loop is None or not loop.is_running() or not self._lengths:
            return []
        with self._reading:
            if time.monotonic() - self._seen_at >= FRESH:
                self._seen, self._seen_at = self._read_in(loop), time.monotonic()
            return self._seen.get(name, [])

    def _read_in(self, loop: asyncio.AbstractEventLoop) -> dict[str, list[Observation]]:
        reading = asyncio.run_coroutine_threadsafe(self._read_queues(), loop)
        try:
            return reading.result(PATIENCE)
        except Exception as error:
            reading.cancel()
            log.debug("could not read the lengths of the queues: %r", error)
            return {}

    async def _read_queues(self) -> dict[str, list[Observation]]:
        found: dict[str, list[Observation]] = {name: [] for name, _, _ in _GAUGES}
        for one in self._lengths:
            facts = {"messaging.destination.name": one.name}
            found["oxcart.queue.jobs"] += [
                Observation(count, {**facts, "oxcart.job.state": state})
                for state, count in (await one.counts()).items()
            ]
            values: dict[str, float] = {
                "oxcart.jobs.oldest_waiting": await one.oldest(),
                "oxcart.jobs.unroutable": sum((await one.unroutable()).values()),
                "oxcart.clock.skew": await one.skew(),
            }
            if (groups := await one.groups()) is not None:
                values["oxcart.groups.waiting"] = groups.groups
                values["oxcart.groups.jobs"] = groups.waiting
                values["oxcart.groups.oldest_waiting"] = groups.oldest_ms / 1000
            for name, value in values.items():
                found[name].append(Observation(value, facts))
        return found
