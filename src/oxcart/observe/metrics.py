"""The metrics of a worker, in Prometheus' form, under the names of BullMQ's metrics.

A worker calls this observer; the numbers are plain integers, and a scrape converts them to Prometheus' form.
A scrape also reads queue lengths from the server, in one round trip per queue and at most once a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from oxcart.broker.port import Code, Outcome, OutcomeKind
from oxcart.broker.port.results import GroupSummary, NamespaceStats
from oxcart.engine.running import RunningJob
from oxcart.model.errors import ReplyCode
from oxcart.model.partitions import split_partition
from oxcart.observe import bridge, names, shares
from oxcart.observe._tally import CALL_SECONDS, Tally
from oxcart.observe.families import histogram
from oxcart.observe.numbers import REFUSED, SNOOZED, STATUSES, QueueNumbers

log = logging.getLogger("oxcart.metrics")

#: Queue lengths younger than this (seconds) are not read again, so several scrapers cost as much as one.
FRESH = 1.0
#: Most seconds that a scrape waits for the server.
PATIENCE = 2.0
#: Most seconds that one number of one queue may take, so that a server that hangs hides its own numbers only.
ANSWER = 1.5


#: Outcomes of attempts that did not succeed.
_BAD = frozenset({OutcomeKind.FAILED, OutcomeKind.RETRY, OutcomeKind.DELAY})


T = TypeVar("T")


class Measured(Protocol):
    """A queue whose lengths can be read."""

    @property
    def name(self) -> str:
        """The queue's name."""

    async def counts(self) -> dict[str, int]:
        """Returns how many jobs are in each state."""

    async def unroutable(self) -> dict[str, int]:
        """Returns how many jobs wait that no living worker can take, by their targets."""


class Metrics(Collector):
    """An observer of workers that can be scraped.

    Args:
        queues: The queues whose lengths are reported.
        registry: Where to register; by default a registry of its own.
        clock: Seconds, for the age of queue lengths.

    Example:
        >>> metrics = Metrics([emails])                        # doctest: +SKIP
        >>> worker = Worker(emails, observer=metrics)          # doctest: +SKIP
        >>> body, content_type = await metrics.scrape()        # doctest: +SKIP
    """

    def __init__(
        self,
        queues: Sequence[Measured] = (),
        *,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._measured = queues
        self._clock = clock
        self._numbers: dict[str, QueueNumbers] = {queue.name: QueueNumbers() for queue in queues}
        self._parts: set[str] = set()  # partitions whose numbers are those of their queue
        self._scripts: dict[str, Tally] = {}
        self._workers = 0
        self._reconnects = 0
        self._up = False
        self._lengths: dict[str, dict[str, int]] = {}
        self._namespaces: dict[str, NamespaceStats] = {}
        self._unroutable: dict[str, int] = {}
        self._skews: dict[str, float] = {}
        self._ages: dict[str, float] = {}
        self._groups: dict[str, GroupSummary] = {}
        self._partitions: dict[str, dict[int, dict[str, int]]] = {}
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self.registry.register(self)

    # -- called by a worker

    def job_started(self, job: RunningJob) -> None:
        """A handler is about to run."""
        (self._numbers.get(job.queue) or self._new(job.queue)).started(job)

    def job_ended(self, job: RunningJob, outcome: Outcome, code: Code, seconds: float) -> None:
        """An attempt ended; ``code`` is the server's answer."""
        numbers = self._numbers.get(job.queue) or self._new(job.queue)
        of_name = numbers.jobs.get(job.name) or numbers.new_name(job.name)
        if code != ReplyCode.DONE:
            of_name.statuses[REFUSED] += 1
            return
        kind = outcome.kind
        if kind == OutcomeKind.DELAY and not outcome.counts:
            of_name.statuses[SNOOZED] += 1
            return
        of_name.statuses[STATUSES[kind]] += 1
        if kind in _BAD:
            numbers.ended_badly(of_name, outcome)
        of_name.duration.add(seconds)

    def called(self, queue: str, ended: int, claimed: int, seconds: float) -> None:
        """A call ended so many attempts and claimed so many jobs."""
        numbers = self._numbers.get(queue) or self._new(queue)
        if ended:
            numbers.finished.add(ended)
        if claimed:
            numbers.claimed.add(claimed)

    def scripted(self, verb: str, seconds: float) -> None:
        """A script was answered."""
        tally = self._scripts.get(verb)
        if tally is None:
            tally = self._scripts[verb] = Tally(CALL_SECONDS)
        tally.add(seconds)

    def renewed(self, queue: str, leases: int, seconds: float) -> None:
        """Leases were renewed."""
        numbers = self._numbers.get(queue) or self._new(queue)
        numbers.heartbeats += leases
        numbers.lock_extend.add(seconds)

    def renewal_failed(self, queue: str, leases: int) -> None:
        """Leases could not be renewed."""
        (self._numbers.get(queue) or self._new(queue)).heartbeats_failed += leases

    def stalled(self, queue: str, job_ids: Sequence[str]) -> None:
        """Jobs were recovered from lost workers."""
        (self._numbers.get(queue) or self._new(queue)).stalled += len(job_ids)

    def check_skipped(self, queue: str) -> None:
        """A stalled check was skipped."""
        (self._numbers.get(queue) or self._new(queue)).skipped += 1

    def reconnecting(self) -> None:
        """An attempt is made to reach a lost server."""
        self._reconnects += 1

    def connection(self, up: bool) -> None:
        """The server can be reached, or not."""
        self._up = up

    def workers(self, change: int) -> None:
        """A worker started (1) or ended (-1)."""
        self._workers += change

    def _new(self, queue: str) -> QueueNumbers:
        """Returns the numbers of a queue; those of a partition are its queue's if that is measured."""
        found = split_partition(queue)
        if found is not None and (whole := self._numbers.get(found[0])) is not None:
            self._parts.add(queue)
            return self._numbers.setdefault(queue, whole)
        return self._numbers.setdefault(queue, QueueNumbers())

    # -- called by a scraper

    async def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """Returns all metrics, with fresh queue lengths, and their content type.

        Args:
            accept: The scraper's Accept header: Prometheus' text form, or OpenMetrics.
        """
        await self.read_lengths()
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    async def read_lengths(self) -> None:
        """Reads the queue lengths, unless that was just done.

        If the server does not answer in time there are none: an old length would look like a new one.
        """
        if self._clock() - self._read_at < FRESH:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="oxcart-queue-lengths")
        await asyncio.wait((self._reading,), timeout=PATIENCE)
        if not self._reading.done():
            self._lengths, self._namespaces, self._unroutable = {}, {}, {}
            self._skews, self._ages, self._groups, self._partitions = {}, {}, {}, {}

    async def close(self) -> None:
        """Cancels a read in progress."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        answers, namespaces, skews, ages, groups = await asyncio.gather(
            asyncio.gather(*(_within(_measure(queue)) for queue in self._measured), return_exceptions=True),
            self._read_namespaces(),
            self._read_each("skew", float),
            self._read_each("oldest", float),
            self._read_each("groups", GroupSummary),
        )
        lengths, unroutable = {}, {}
        for queue, answer in zip(self._measured, answers, strict=True):
            if not isinstance(answer, BaseException):
                lengths[queue.name], unroutable[queue.name] = answer
            else:
                log.debug("could not read the lengths of queue %s: %r", queue.name, answer)
        self._namespaces, self._skews, self._ages, self._groups = namespaces, skews, ages, groups
        self._partitions = {
            queue.name: parts for queue in self._measured if (parts := getattr(queue, "partitions", None))
        }
        self._lengths, self._unroutable, self._read_at = lengths, unroutable, self._clock()

    async def _read_namespaces(self) -> dict[str, NamespaceStats]:
        looks = [_within(look()) for queue in self._measured if (look := getattr(queue, "monitored", None))]
        answers = await asyncio.gather(*looks, return_exceptions=True)
        return dict(seen for seen in answers if isinstance(seen, tuple))

    async def _read_each(self, what: str, kind: type[T]) -> dict[str, T]:
        """Reads a value of every queue that has it."""
        looks = {
            queue.name: _within(look()) for queue in self._measured if (look := getattr(queue, what, None))
        }
        answers = await asyncio.gather(*looks.values(), return_exceptions=True)
        found = zip(looks, answers, strict=True)
        return {name: number for name, number in found if isinstance(number, kind)}

    def collect(self) -> Iterator[Metric]:
        """Yields every metric, for the registry."""
        yield from self._of_queues()
        yield self._length_gauge()
        yield from bridge.collect(self._namespaces)
        lost = GaugeMetricFamily(
            "bullmq_unroutable_jobs",
            "Jobs whose targets no registered worker fits, the same from every process: take the max.",
            labels=["queue"],
        )
        for name, count in self._unroutable.items():
            lost.add_metric([name], count)
        yield lost
        oldest = GaugeMetricFamily(
            "bullmq_oldest_waiting_seconds",
            "Age of the job that is ready for longest, the same from every process: take the max.",
            labels=["queue"],
        )
        for name, age in self._ages.items():
            oldest.add_metric([name], age)
        yield oldest
        skews = GaugeMetricFamily(
            "bullmq_clock_skew_seconds",
            "Seconds that the clock of this machine is ahead of the server's; negative where it is behind.",
            labels=["queue"],
        )
        for name, skew in self._skews.items():
            skews.add_metric([name], skew)
        yield skews
        yield from shares.of_groups(self._groups)
        yield shares.of_partitions(self._partitions)
        yield histogram(
            "bullmq_script_duration_seconds",
            "Time until a script was answered, the way there and back included.",
            ["verb"],
            (([verb], tally) for verb, tally in self._scripts.items()),
        )
        yield GaugeMetricFamily("bullmq_active_workers", "Workers running in this process.", self._workers)
        yield CounterMetricFamily(
            "bullmq_redis_reconnect_attempts", "Attempts to reach a lost server.", self._reconnects
        )
        yield GaugeMetricFamily(
            "bullmq_redis_connection_status", "1 while the server can be reached, else 0.", int(self._up)
        )

    def _of_queues(self) -> Iterator[Metric]:
        queues = [row for row in self._numbers.items() if row[0] not in self._parts]
        yield from names.collect(queues)
        for metric, text, of in _COUNTERS:
            counter = CounterMetricFamily(metric, text, labels=["queue"])
            for name, numbers in queues:
                counter.add_metric([name], of(numbers))
            yield counter
        yield histogram(
            "bullmq_lock_extend_duration_seconds",
            "How long a renewal of leases took; should be under 10 ms.",
            ["queue"],
            (([name], numbers.lock_extend) for name, numbers in queues),
        )
        yield histogram(
            "bullmq_batch_size",
            "Attempts finished, or jobs claimed, in one call.",
            ["queue", "kind"],
            (
                ([name, kind], tally)
                for name, numbers in queues
                for kind, tally in (("finished", numbers.finished), ("claimed", numbers.claimed))
            ),
        )

    def _length_gauge(self) -> Metric:
        gauge = GaugeMetricFamily(
            "bullmq_queue_length",
            "Jobs in the queue by state, the same from every process: take the max, not the sum.",
            labels=["queue", "state"],
        )
        for name, counts in self._lengths.items():
            for state, count in counts.items():
                gauge.add_metric([name, state], count)
        return gauge


async def _within(work: Awaitable[T]) -> T:
    async with asyncio.timeout(ANSWER):
        return await work


async def _measure(queue: Measured) -> tuple[dict[str, int], int]:
    """Returns a queue's lengths, and how many of its jobs no living worker can take."""
    return await queue.counts(), sum((await queue.unroutable()).values())


_COUNTERS: tuple[tuple[str, str, Callable[[QueueNumbers], int]], ...] = (
    (
        "bullmq_stalled_jobs_detected",
        "Jobs recovered from lost workers by this process.",
        lambda numbers: numbers.stalled,
    ),
    (
        "bullmq_quarantined_jobs",
        "Jobs that could not be decoded and were failed unrun by this process.",
        lambda numbers: numbers.quarantined,
    ),
    ("bullmq_heartbeat_success", "Leases renewed.", lambda numbers: numbers.heartbeats),
    (
        "bullmq_heartbeat_failure",
        "Leases that could not be renewed, or were lost.",
        lambda numbers: numbers.heartbeats_failed,
    ),
    (
        "bullmq_stalled_checker_skipped",
        "Stalled checks skipped because the last one was still running.",
        lambda numbers: numbers.skipped,
    ),
)
