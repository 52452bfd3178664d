"""The partitions of one queue: their brokers, their layout, and the partition of each job."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import msgspec

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.caller import Caller
from oxcart.broker.capabilities import PARTITIONED
from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.ids import new_id
from oxcart.broker.keyring import KeyRing
from oxcart.broker.sealing import Sealer
from oxcart.model.errors import BrokerError, OxcartError, PartitionNotEmpty, ValidationError
from oxcart.model.options import JobOptions
from oxcart.model.partitions import (
    Layout,
    check_partitions,
    marked_id,
    marked_partition,
    partition_name,
    partition_of,
    routing_key,
)

log = logging.getLogger("oxcart.partitions")

T = TypeVar("T")

#: Seconds after which a producer reads the layout again before an add.
FRESH = 5.0
#: Seconds after which an add waits for that read: workers may have given partitions of such a copy up.
OLD = 30.0
#: Seconds that one partition may take to answer with the layout before the others are asked.
PATIENCE = 3.0
#: Jobs without a key that go to one partition together, at most.
TOGETHER = 150


class Spread:
    """The partitions of one queue, as one client knows them.

    Args:
        queue: The name of the queue.
        servers: The cluster, or the standalone servers in turn.
        size: The number of partitions that the first version of the layout gets.
        prefix: The prefix of the queue's keys.
        reconnect: Pauses and limit of attempts to reach a lost server.
        key_ring: Opens sealed payloads.
        keep_events: How many events each partition keeps; None leaves it as it is.
    """

    def __init__(
        self,
        queue: str,
        servers: Sequence[Server],
        size: int,
        *,
        prefix: str,
        reconnect: Reconnect | None = None,
        key_ring: KeyRing | None = None,
        keep_events: int | None = None,
    ) -> None:
        self.queue = queue
        self._servers = list(servers)
        self._prefix = prefix
        self._reconnect = reconnect
        self._key_ring = key_ring
        self._keep_events = keep_events
        self._brokers: dict[int, BullMQBroker] = {}
        self._callers: dict[int, Caller] = {}  # of standalone servers, shared by their partitions
        self._adding: dict[int, int] = {}  # jobs of adds under way
        self._turn = itertools.count()
        self._chosen: int | None = None
        self._together = 0
        self._read_at = 0.0  # 0 until a read of the layout was tried
        self._known_at = 0.0  # when the layout was last read
        self._reading: asyncio.Task[None] | None = None
        #: The newest version of the layout that this client knows.
        self.layout = Layout(0, size, size, servers=len(self._servers))
        #: The partitions of jobs whose id does not lead there, until they are added.
        self.placed: dict[str, int] = {}
        #: Keeps other clients from changing the layout and from dividing limits.
        self.alone: Callable[[], AbstractAsyncContextManager[object]] = contextlib.nullcontext
        #: Prepares the partitions of a new layout before it is written; refuses if the second is set.
        self.prepare: Callable[[Layout, bool], Awaitable[None]] | None = None
        #: Cleans the partitions behind those of a new layout, up to a number, once it is written.
        self.dismiss: Callable[[Layout, int], Awaitable[None]] | None = None
        #: Moves schedules and shares of limits to where the layout wants them.
        self.arrange: Callable[[], Awaitable[bool]] | None = None
        #: The sizes of all versions.
        self.sizes: set[int] = {size}

    # -- the partitions

    def broker(self, number: int) -> BullMQBroker:
        """Returns the broker of a partition; partitions of one standalone server share a connection."""
        found = self._brokers.get(number)
        if found is None:
            place = number % len(self._servers)
            server = self._servers[place]
            found = BullMQBroker(
                server,
                partition_name(self.queue, number),
                prefix=self._prefix,
                reconnect=self._reconnect,
                key_ring=self._key_ring,
                caller=None if server.is_cluster else self._callers.get(place),
                keep_events=self._keep_events,
            )
            # All partitions seal alike, so that a client can seal before it knows the partition.
            found.sealer = Sealer.of(self._key_ring, "bullmq", found.keys.prefix, self.queue)
            found.make_id = lambda: marked_id(new_id(), number)
            if not server.is_cluster:
                self._callers.setdefault(place, found.caller)
            self._brokers[number] = found
        return found

    def number_of(self, job: Any) -> int:
        """Returns the number of the partition that an encoded job goes to."""
        return int(job.partition)

    def brokers(self) -> list[BullMQBroker]:
        """Returns the brokers of all partitions that may have jobs."""
        return [self.broker(number) for number in range(self.layout.served)]

    async def each(self, work: Callable[[BullMQBroker], Awaitable[T]]) -> list[T]:
        """Does something in all partitions at once; returns the answers by their numbers.

        Raises:
            OxcartError: It failed in one of them; the others have done it.
        """
        return await _all(work, await self.current())

    async def current(self) -> list[BullMQBroker]:
        """Reads the layout, and returns the brokers of all partitions that may have jobs.

        Operations on all jobs begin with it: an older copy lacks the partitions of a resize since.
        """
        await self.refresh()
        return self.brokers()

    async def anywhere(self, work: Callable[[BullMQBroker], Awaitable[T]]) -> dict[BullMQBroker, T]:
        """Does something in the partitions of all layouts at once, those that were given up included.

        A producer that knows an old layout may have added jobs to these.

        Raises:
            OxcartError: It failed in one of them; the others have done it.
        """
        brokers = await self.ever()
        return dict(zip(brokers, await _all(work, brokers), strict=True))

    async def ever(self) -> list[BullMQBroker]:
        """Reads the layout, and returns the brokers of all partitions, those that were given up included."""
        await self.refresh()
        return [self.broker(number) for number in range(self._known)]

    @property
    def _known(self) -> int:
        """How many partitions the queue ever had, as far as this client knows."""
        return max(self.layout.served, *self.sizes)

    def number(self, broker: BullMQBroker) -> int:
        """Returns the number of a partition."""
        return next(number for number, one in self._brokers.items() if one is broker)

    async def close(self) -> None:
        """Closes the connections."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        brokers, self._brokers, self._callers = [*self._brokers.values()], {}, {}
        callers = {id(one.caller): one for one in brokers}
        await asyncio.gather(*(one.close() for one in callers.values()))

    # -- routing

    @staticmethod
    def check(options: JobOptions) -> None:
        """Refuses options that concern all jobs of a queue together: a partition knows only its own.

        Raises:
            NotSupported: The job has a target or a group.
        """
        if options.target is not None:
            PARTITIONED.require("target")
        if options.group is not None:
            PARTITIONED.require("groups")

    def choose(self, options: JobOptions) -> int:
        """Returns the partition for a new job."""
        key = routing_key(options)
        if key is not None:
            return partition_of(key, self.layout.size)
        if self._chosen is None or self._together >= TOGETHER or self._chosen >= self.layout.size:
            if self._chosen is None:
                asyncio.get_running_loop().call_soon(self._choose_again)
            self._chosen, self._together = self._least_loaded(), 0
        self._together += 1
        return self._chosen

    def _choose_again(self) -> None:
        self._chosen = None

    def _least_loaded(self) -> int:
        size, first = self.layout.size, next(self._turn)
        return min(
            ((first + step) % size for step in range(size)), key=lambda number: self._adding.get(number, 0)
        )

    def began(self, number: int, jobs: int) -> None:
        """Counts jobs whose add is under way, or with a negative number no longer."""
        self._adding[number] = self._adding.get(number, 0) + jobs

    def home(self, job_id: str) -> int:
        """Returns the partition in which a job most likely is."""
        marked = marked_partition(job_id)
        if marked is not None and marked < self._known:
            return marked
        key = job_id
        if job_id.startswith("repeat:"):  # a run of a schedule is in the partition of the schedule
            key = job_id[len("repeat:") :].rpartition(":")[0]
        return partition_of(key, self.layout.size)

    async def find(self, job_ids: Iterable[str]) -> dict[str, BullMQBroker]:
        """Returns the partitions that have some jobs; for a job that none has, its home."""
        await self.ready()
        found: dict[str, BullMQBroker] = {}
        homes: dict[int, list[str]] = {}
        for job_id in dict.fromkeys(job_ids):
            homes.setdefault(self.home(job_id), []).append(job_id)
        lost: list[str] = []
        for number, ids in homes.items():
            broker = self.broker(number)
            for job_id, state in zip(ids, await broker.states(ids), strict=True):
                found[job_id] = broker
                lost += [job_id] if state == "unknown" else []
        if lost:
            for broker, states in (await self.anywhere(lambda one: one.states(lost))).items():
                found |= {
                    job_id: broker for job_id, state in zip(lost, states, strict=True) if state != "unknown"
                }
        return found

    async def holder(self, job_id: str) -> BullMQBroker:
        """Returns the partition that has a job; for a job that none has, its home."""
        return (await self.find([job_id]))[job_id]

    # -- the layout

    async def ready(self) -> None:
        """Learns the layout before the first use, and again when the copy is older than `FRESH`.

        Until it is `OLD`, the copy is used meanwhile.

        Raises:
            ValidationError: The queue has another number of standalone servers.
        """
        if not self._read_at:
            await self.refresh()
        elif time.monotonic() - self._read_at > FRESH:
            # An unanswered read must not keep adds from the partitions that live.
            self._read_at = time.monotonic()
            self._reading = asyncio.create_task(self._refresh(), name="oxcart-layout")
        if self._reading is not None and time.monotonic() - self._known_at > OLD:
            await asyncio.wait((self._reading,), timeout=PATIENCE)

    async def _refresh(self) -> None:
        try:
            await self.refresh()
        except OxcartError as error:
            log.warning("queue %s: could not read its layout: %s", self.queue, error)

    async def exists(self) -> bool:
        """Returns whether a layout is stored; unlike ``refresh`` it makes none."""
        return bool(await self._read(0))

    async def refresh(self) -> Layout:
        """Reads the newest version of the layout; the first client makes the first version."""
        known: dict[int, Layout] | None = None
        for number in range(self.layout.served):
            known = await self._read(number)
            if known is not None:  # every partition has all versions; most likely partition 0 answers
                break
        self._read_at = time.monotonic()
        if known is None:
            return self.layout  # no server answers: calls will say so
        self._known_at = self._read_at
        if not known:  # a new queue, or an obliterated one
            wanted = self.layout
            if not wanted.version:
                wanted = Layout(1, wanted.size, wanted.served, servers=len(self._servers))
            decided = await self._write(wanted)
            known = {decided.version: decided}
        self._learn(known, decides=number == 0)
        return self.layout

    def _learn(self, known: dict[int, Layout], *, decides: bool = True) -> None:
        newest = known[max(known)]
        if newest.servers != len(self._servers):
            bound = f"a list of {newest.servers} servers, as the layout of queue {self.queue!r} has"
            raise ValidationError("url", bound, len(self._servers))
        # Partition 0 may have an older version than this client only if the queue was obliterated meanwhile.
        if newest.version > self.layout.version or (decides and newest.version < self.layout.version):
            if self.layout.version and newest.size != self.layout.size:
                log.info("queue %s has %d partitions now", self.queue, newest.size)
            self.layout = newest
        self.sizes |= {one.size for one in known.values()}

    async def _read(self, number: int) -> dict[int, Layout] | None:
        broker = self.broker(number)
        try:
            async with asyncio.timeout(PATIENCE):
                flat = await broker.caller.command("HGETALL", broker.keys.layout(), timeout=PATIENCE)
        except (BrokerError, TimeoutError):
            return None
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return {int(version): msgspec.json.decode(raw, type=Layout) for version, raw in pairs}

    async def _write(self, layout: Layout) -> Layout:
        """Writes a version, unless partition 0 has one of its number; returns that of partition 0."""
        decided = await self._write_in(0, layout)
        everywhere = range(1, max(decided.served, self.layout.served))
        copies = [self._write_in(number, decided) for number in everywhere]
        for answer in await asyncio.gather(*copies, return_exceptions=True):
            if isinstance(answer, BaseException):
                log.warning("queue %s: a partition did not get its layout yet: %s", self.queue, answer)
        return decided

    async def _write_in(self, number: int, layout: Layout) -> Layout:
        broker, field = self.broker(number), str(layout.version)
        key, timeout = broker.keys.layout(), PATIENCE
        # Both may be repeated: a version never changes once it is written.
        await broker.caller.write("HSETNX", key, field, msgspec.json.encode(layout), timeout=timeout)
        raw = await broker.caller.command("HGET", key, field, timeout=timeout)
        return msgspec.json.decode(raw, type=Layout)

    async def resize(self, size: int) -> Layout:
        """Lets new jobs go to another number of partitions; returns the new layout.

        Raises:
            ValidationError: The number is out of its bounds.
            BrokerError: Partition 0 could not be reached; nothing has changed.
        """
        check_partitions(size)
        async with self.alone():
            while True:
                await self._newest()
                if self.layout.size == size:
                    return self.layout
                wanted = self.layout.resized(size, await self.broker(0).now())
                if await self._change(wanted):
                    break
        try:
            await self.settle()
        except (OxcartError, TimeoutError) as error:  # workers try again
            log.warning("queue %s: schedules or limits could not move yet: %s", self.queue, error)
        return self.layout

    async def _change(self, wanted: Layout, *, strict: bool = True) -> bool:
        """Writes a new layout when its partitions are prepared; returns whether it is the layout now."""
        served = self.layout.served
        if self.prepare is not None:
            await self.prepare(wanted, strict)
        decided = await self._write(wanted)
        self._learn({decided.version: decided})
        if decided == wanted and self.dismiss is not None and wanted.served < served:
            try:
                await self.dismiss(wanted, served)
            except OxcartError as error:  # the next layout with these partitions does it
                log.warning("queue %s: could not clean retired partitions: %s", self.queue, error)
        return decided == wanted

    async def retire(self, *, least_age_ms: int = 0) -> Layout:
        """Gives up the partitions that get no new jobs; returns the layout.

        Args:
            least_age_ms: Change nothing if the layout changed within so many ms.

        Raises:
            PartitionNotEmpty: One of them has jobs or schedules; nothing has changed.
        """
        await self._newest()
        if await self._is_kept(least_age_ms):
            return self.layout
        await self.settle()  # schedules leave these partitions
        async with self.alone():
            while True:
                await self._newest()
                if await self._is_kept(least_age_ms):
                    return self.layout
                left: dict[int, int] = {}
                for number in range(self.layout.size, self.layout.served):
                    broker = self.broker(number)
                    counts = await broker.counts_over_lanes()
                    if many := sum(counts.values()) + await broker.schedules.count():
                        left[number] = many
                if left:
                    raise PartitionNotEmpty(self.queue, left)
                wanted = self.layout.retired(await self.broker(0).now())
                if await self._change(wanted, strict=False):
                    return self.layout

    async def _is_kept(self, least_age_ms: int) -> bool:
        """Returns whether there is nothing to give up, or the layout is too young for it."""
        layout, now = self.layout, await self.broker(0).now()
        return layout.served == layout.size or now - layout.at_ms < least_age_ms

    async def reclaim(self) -> Layout:
        """Takes partitions that were given up back, if jobs were added to them since; returns the layout.

        A producer that does not read the layout may add to them at any time.
        """
        layout = await self.refresh()
        given_up = [self.broker(number) for number in range(layout.served, self._known)]
        counted = await asyncio.gather(*(one.counts_over_lanes() for one in given_up), return_exceptions=True)
        late = [
            number
            for number, counts in enumerate(counted, layout.served)
            if not isinstance(counts, BaseException) and any(counts.values())
        ]
        if not late:
            return layout
        async with self.alone():
            await self._newest()
            if max(late) < self.layout.served:
                return self.layout
            wanted = self.layout.reclaimed(max(late) + 1, await self.broker(0).now())
            # A limit that is too low to be divided: each partition gets a share of one.
            await self._change(wanted, strict=False)
        names = ", ".join(self.broker(number).queue for number in late)
        log.warning("queue %s: a producer with an old layout added jobs to %s", self.queue, names)
        return self.layout

    async def settle(self) -> bool:
        """Moves schedules and shares of limits after a resize; returns whether all are in their place."""
        return self.arrange is None or await self.arrange()

    async def _newest(self) -> None:
        """Reads the layout from partition 0, which decides, and mends copies that lack it."""
        await self.refresh()
        await self._write(self.layout)


async def _all(work: Callable[[BullMQBroker], Awaitable[T]], brokers: Sequence[BullMQBroker]) -> list[T]:
    """Does something in all of the partitions, and then raises the first error."""
    answers = await asyncio.gather(*(work(one) for one in brokers), return_exceptions=True)
    for one in answers:
        if isinstance(one, BaseException):
            raise one
    return [one for one in answers if not isinstance(one, BaseException)]
