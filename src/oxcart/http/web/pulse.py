"""The pulse of all queues: rates, latencies and backlogs of the last minutes, sampled once for all viewers.

A sample is taken when a page or a live part needs one and the last is older than two seconds. So the load on
the server does not depend on the number of viewers, and without viewers there is none. Rates come from the
queues' event streams, which every client writes: Node's and PyPI's jobs count as ours do. A stream that is
faster than a sample may read is extrapolated from the part that was read.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Sequence

import msgspec

from oxcart.broker.port.sampling import Crew, Sample, SampledEvent
from oxcart.broker.sampling import crews, event_ms, sample
from oxcart.model.errors import OxcartError
from oxcart.model.job import Job
from oxcart.queue import Queue

#: Seconds after which a sample is taken anew, and the same for workers and failing types.
FRESH = 2.0
SELDOM = 10.0
#: The width of a bin in ms, and the number of bins: five minutes.
BIN = 5000
BINS = 60
#: Bins of a line at least.
SHORTEST = 12
#: Bins over which a rate is computed: 30 seconds.
RECENT = 6
#: Events of one queue that one sample reads at most; the first reads so many over all queues.
MOST_EVENTS = 300
FIRST_EVENTS = 20_000
#: Jobs per queue whose last event is remembered, to measure how long they waited and ran.
REMEMBERED = 2000
#: Queues whose newest failures are read, and how many failures of each.
FAILING_QUEUES = 10
FAILING_JOBS = 50


class Bin(msgspec.Struct):
    """What happened within five seconds."""

    start: int
    added: float = 0.0
    completed: float = 0.0
    failed: float = 0.0
    waits: list[int] = msgspec.field(default_factory=list)
    runs: list[int] = msgspec.field(default_factory=list)
    backlog: int | None = None


class Track:
    """One queue over the last minutes.

    Attributes:
        name: The queue.
        protocol: ``bullmq`` or ``bridge``.
        sample: Its last sample.
        crew: Its workers.
        shown: Bins of its lines, the same for all queues: fewer while none has so long a past.
    """

    def __init__(self, name: str, protocol: str) -> None:
        self.name = name
        self.protocol = protocol
        self.sample = Sample(at_ms=0, counts={})
        self.crew = Crew()
        self.shown = BINS
        self._position = ""
        self._lanes_since = 0
        self._bins: deque[Bin] = deque(maxlen=BINS)
        self._waiting: OrderedDict[str, int] = OrderedDict()
        self._active: OrderedDict[str, int] = OrderedDict()

    @property
    def position(self) -> str:
        """The id of the last event seen; empty before the first sample, and after a long pause."""
        return self._position

    def forget(self) -> None:
        """Begins anew, after a pause that is longer than the bins."""
        self._position = ""
        self._lanes_since = 0
        self._bins.clear()
        self._waiting.clear()
        self._active.clear()

    @property
    def lanes_since(self) -> int:
        """From which time on the events of lanes are not counted yet, in ms."""
        return self._lanes_since

    def take(self, found: Sample) -> None:
        """Adds a sample."""
        is_first, self.sample = not self._position, found
        events = found.events
        since = event_ms(self._position) if self._position else 0
        self._take(events, found.cut and not is_first, since)
        if is_first:
            self._backfill(events)
        self._take(found.lane_events, found.lanes_cut, self._lanes_since)
        # The lanes are read behind the sample's own time, and to the end of the millisecond before.
        seen = found.lane_events[-1].at_ms + 1 if found.lane_events and not found.lanes_cut else 0
        self._lanes_since = max(found.at_ms, seen)
        self._bin(found.at_ms).backlog = self.ready
        if found.position:
            self._position = found.position
        elif found.cut and not is_first:
            self._position = f"{found.at_ms}-0"
        elif events:
            self._position = events[-1].id
        elif is_first:
            self._position = "0-1"

    def _take(self, events: Sequence[SampledEvent], cut: bool, since: int) -> None:
        """Counts events; if there are more than were read, they stand for the whole time since then."""
        if not events:
            return
        first, last, now = events[0].at_ms, events[-1].at_ms, self.sample.at_ms
        factor, begin = 1.0, first
        if cut:
            begin = min(since, first)
            factor = max(1.0, (now - begin) / max(1, last - begin))
        for event in events:
            self._count(round(begin + (event.at_ms - begin) * factor), event, factor)

    def _count(self, place: int, event: SampledEvent, weight: float) -> None:
        at, name, job = event.at_ms, event.name, event.job_id
        slot = self._bin(place)
        if name in ("waiting", "added"):
            slot.added += weight if name == "added" else 0
            self._waiting[job] = at
        elif name == "active":
            if (since := self._waiting.pop(job, None)) is not None:
                slot.waits.append(at - since)
            self._active[job] = at
        elif name in ("completed", "failed", "delayed"):
            if name == "completed":
                slot.completed += weight
            elif name == "failed":
                slot.failed += weight
            if (since := self._active.pop(job, None)) is not None:
                slot.runs.append(at - since)
        for remembered in (self._waiting, self._active):
            while len(remembered) > REMEMBERED:
                remembered.popitem(last=False)

    def _backfill(self, events: Sequence[SampledEvent]) -> None:
        """Computes the backlogs before the first sample, backwards from the events."""
        length = self.ready
        for event in reversed(events):
            slot = self._bin(event.at_ms)
            if slot.backlog is None:
                slot.backlog = max(0, length)
            length += 1 if event.name == "active" else -1 if event.name == "waiting" else 0

    def _bin(self, at: int) -> Bin:
        start = at - at % BIN
        for one in reversed(self._bins):
            if one.start == start:
                return one
            if one.start < start:
                break
        made = Bin(start)
        if not self._bins or start > self._bins[-1].start:
            self._bins.append(made)
        return made  # an event of long ago, which no bin takes any more

    @property
    def past(self) -> int:
        """How many bins its past has."""
        return (self.sample.at_ms - self._bins[0].start) // BIN + 1 if self._bins else 0

    # -- figures

    @property
    def ready(self) -> int:
        """Jobs that a worker could take now."""
        counts = self.sample.counts
        own = counts.get("wait", 0) + counts.get("paused", 0) + counts.get("prioritized", 0)
        return own + self.sample.grouped

    def count(self, state: str) -> int:
        """Returns how many jobs a list of the wire has; jobs that wait for their group's turn are ready."""
        counted = self.sample.counts.get(state, 0)
        return max(0, counted - self.sample.grouped) if state == "delayed" else counted

    @property
    def oldest_s(self) -> float | None:
        """For how many seconds the oldest ready job has been ready."""
        since = self.sample.oldest_ms
        return None if since is None else max(0.0, (self.sample.at_ms - since) / 1000)

    def rate(self, kind: str = "completed") -> float:
        """Returns jobs per second over the last half minute."""
        now = self.sample.at_ms
        since = now - now % BIN - RECENT * BIN
        total: float = sum(getattr(one, kind) for one in self._bins if one.start >= since)
        return total * 1000 / (now - since)

    def share_failed(self) -> float:
        """Returns which share of the attempts that ended in the last five minutes failed for good."""
        failed = sum(one.failed for one in self._bins)
        ended = failed + sum(one.completed for one in self._bins)
        return failed / ended if ended else 0.0

    def median(self, kind: str) -> float | None:
        """Returns the median of ``waits`` or ``runs`` in ms over the last five minutes, or None."""
        values = sorted(value for one in self._bins for value in getattr(one, kind))
        return float(values[len(values) // 2]) if values else None

    def line(self, kind: str) -> list[float | None]:
        """Returns a line of at most 60 points, oldest first; None where nothing is known.

        Args:
            kind: ``completed``, ``failed`` or ``added`` in jobs per second, ``waits`` or ``runs`` as medians
                in ms, or ``backlog``.
        """
        known = {one.start: one for one in self._bins}
        last = self.sample.at_ms - self.sample.at_ms % BIN
        if kind in ("completed", "failed", "added"):
            last -= BIN  # the present bin is not over: it would look like a decline
        first = min(known, default=last)
        points: list[float | None] = []
        backlog: float | None = None
        for start in range(last - (BINS - 1) * BIN, last + 1, BIN):
            slot = known.get(start)
            if kind == "backlog":
                if slot is not None and slot.backlog is not None:
                    backlog = slot.backlog
                points.append(backlog)
            elif kind in ("waits", "runs"):
                values = sorted(getattr(slot, kind)) if slot else []
                points.append(float(values[len(values) // 2]) if values else None)
            else:
                value = getattr(slot, kind) / (BIN / 1000) if slot else 0.0 if start >= first else None
                points.append(value)
        return points[-self.shown :]


class FailingType(msgspec.Struct, kw_only=True):
    """A job type with recent failures."""

    queue: str
    name: str
    count: int
    last_ms: int
    reason: str


class Pulse:
    """The pulse of some queues.

    Args:
        queues: The queues.
    """

    def __init__(self, queues: Sequence[Queue]) -> None:
        self._queues = list(queues)
        self.tracks = {queue.name: Track(queue.name, queue._core.protocol) for queue in self._queues}
        self.failing: list[FailingType] = []
        #: How many samples were taken: the load on the server, however many watch.
        self.samples = 0
        self._sampled = self._crewed = float("-inf")
        self._lock = asyncio.Lock()

    async def add(self, queue: Queue) -> None:
        """Samples one more queue, or another in place of that of its name."""
        async with self._lock:
            names = [one.name for one in self._queues]
            if queue.name in names:
                self._queues[names.index(queue.name)] = queue
            else:
                self._queues.append(queue)
            self.tracks[queue.name] = Track(queue.name, queue._core.protocol)
            self._sampled = self._crewed = float("-inf")

    async def fresh(self, crews_age: float = SELDOM) -> dict[str, Track]:
        """Returns all queues, sampled at most two seconds ago.

        Args:
            crews_age: How old what is known of workers may be, in seconds.

        Raises:
            BrokerError: The server does not answer.
        """
        async with self._lock:
            now = time.monotonic()
            if now - self._sampled >= FRESH:
                await self._sample(now)
            if now - self._crewed >= crews_age:
                self._crewed = now
                await self._crew()
        return self.tracks

    async def _sample(self, now: float) -> None:
        tracks = list(self.tracks.values())
        if now - self._sampled > BINS * BIN / 1000:
            for track in tracks:
                track.forget()
        is_first = not any(track.position for track in tracks)
        most = max(20, min(1000, FIRST_EVENTS // len(tracks))) if is_first else MOST_EVENTS
        brokers = [queue._core.broker for queue in self._queues]
        # Lanes have no newest events over all of them, so the past is read from its beginning on.
        past = round(time.time() * 1000) - BINS * BIN
        lanes = [track.lanes_since or past for track in tracks]
        found = await sample(brokers, [track.position for track in tracks], most, lanes)
        for track, one in zip(tracks, found, strict=True):
            track.take(one)
        shown = min(BINS, max(SHORTEST, *(track.past for track in tracks)))
        for track in tracks:
            track.shown = shown
        self.samples += 1
        self._sampled = time.monotonic()

    async def _crew(self) -> None:
        found = await crews([queue._core.broker for queue in self._queues])
        for track, one in zip(self.tracks.values(), found, strict=True):
            track.crew = one
        by_failures = sorted(self._queues, key=lambda queue: -self.tracks[queue.name].count("failed"))
        failing = [queue for queue in by_failures[:FAILING_QUEUES] if self.tracks[queue.name].count("failed")]
        rows: dict[tuple[str, str], FailingType] = {}
        for queue in failing:
            try:
                jobs = await queue._core.broker.page("failed", 0, FAILING_JOBS - 1)
            except OxcartError:
                continue
            for job in jobs:
                _add_failing(rows, queue.name, job)
        self.failing = sorted(rows.values(), key=lambda row: (-row.count, -row.last_ms))


def _add_failing(rows: dict[tuple[str, str], FailingType], queue: str, job: Job) -> None:
    at = job.finished_on or job.timestamp
    row = rows.get((queue, job.name))
    if row is None:
        rows[queue, job.name] = FailingType(
            queue=queue, name=job.name, count=1, last_ms=at, reason=job.failed_reason or ""
        )
    else:
        row.count += 1
