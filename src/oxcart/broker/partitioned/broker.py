"""A partitioned queue: every verb of the port, in one partition or in all of them."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.capabilities import PARTITIONED
from oxcart.broker.partitioned.bulk import SpreadBulk, SpreadCancelling, SpreadDeadLetters, SpreadRescue
from oxcart.broker.partitioned.events import MergedEvents
from oxcart.broker.partitioned.flows import SpreadFlows, SpreadGraphs
from oxcart.broker.partitioned.job_parts import (
    SpreadDeduplication,
    SpreadLogs,
    SpreadMetrics,
    SpreadSteps,
    SpreadUpdates,
    SpreadWebhooks,
)
from oxcart.broker.partitioned.limits import SpreadLimits
from oxcart.broker.partitioned.merging import merged_page
from oxcart.broker.partitioned.schedules import SpreadSchedules
from oxcart.broker.partitioned.spread import Spread
from oxcart.broker.port import (
    NOTHING,
    Added,
    Ask,
    Claimed,
    Code,
    Ended,
    Lease,
    Outage,
    Outcome,
    Recovered,
)
from oxcart.broker.workers import WorkerRecord
from oxcart.model.errors import BrokerError, NotSupported, OxcartError
from oxcart.model.job import Job
from oxcart.model.options import JobOptions
from oxcart.model.partitions import Layout, partition_of
from oxcart.model.target import Abilities

if TYPE_CHECKING:
    from oxcart.broker.caller import Caller
    from oxcart.broker.cancellations import CancelRequest
    from oxcart.broker.clock import ServerClock
    from oxcart.broker.connection import Server
    from oxcart.broker.port import QueueKeys
    from oxcart.broker.port.streams import Inbox, WorkWait
    from oxcart.broker.sealing import Sealer

T = TypeVar("T")


class Placed(tuple[str, list[Any]]):
    """An encoded job, and where it goes.

    Attributes:
        partition: The number of its partition.
        elsewhere: Partitions in which a job of this id may be from before a resize.
    """

    partition: int
    elsewhere: tuple[int, ...] = ()


class PartitionedBroker:
    """One queue over several partitions.

    A worker claims from the partitions themselves; here a claim takes from one after another.

    Args:
        spread: The partitions.
    """

    capabilities = PARTITIONED
    gates = groups = lanes = namespace = sampling = sealed_values = suspects = None
    lane: str | None = None
    slot: int | None = None
    next_expiry = 0

    def __init__(self, spread: Spread) -> None:
        self.spread = spread
        self.base = spread.queue
        self._turn = itertools.count()
        self._claimed: dict[str, BullMQBroker] = {}
        self.bulk = SpreadBulk(spread)
        self.cancelling = SpreadCancelling(spread)
        self.dead_letters = SpreadDeadLetters(spread)
        self.deduplication = SpreadDeduplication(spread)
        self.flows = SpreadFlows(spread)
        self.graphs = SpreadGraphs(spread)
        self.limits = SpreadLimits(spread)
        self.logs = SpreadLogs(spread)
        self.metrics = SpreadMetrics(spread)
        self.rescue = SpreadRescue(spread)
        self.schedules = SpreadSchedules(spread)
        self.steps = SpreadSteps(spread)
        self.updates = SpreadUpdates(spread)
        self.webhooks = SpreadWebhooks(spread)
        spread.alone = self.limits.alone
        spread.prepare = self._prepare
        spread.dismiss = self.limits.dismiss
        spread.arrange = self._arrange

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.base

    @property
    def partitions(self) -> Spread:
        """The partitions."""
        return self.spread

    async def _prepare(self, layout: Layout, strict: bool) -> None:
        """Gives further partitions the settings of the queue, and divides its limits anew."""
        paused = await self.is_paused()
        await self.limits.prepare(layout, strict=strict)
        for number in range(self.spread.layout.served, layout.served):
            one = self.spread.broker(number)
            await (one.pause() if paused else one.resume())

    async def _arrange(self) -> bool:
        """Moves schedules and shares of limits after a resize; returns whether all are in their place."""
        # A schedule that cannot move must not stop the limits.
        moved, done = await asyncio.gather(
            self.schedules.settle(), self.limits.settle(), return_exceptions=True
        )
        for one in (moved, done):
            if isinstance(one, BaseException):
                raise one
        return bool(done)

    @property
    def _first(self) -> BullMQBroker:
        return self.spread.broker(0)

    @property
    def sealer(self) -> Sealer | None:
        """Seals and opens values, in all partitions alike."""
        return self._first.sealer

    @property
    def clock(self) -> ServerClock:
        """Estimates the time of the server of partition 0."""
        return self._first.clock

    # -- adding

    def encode(self, name: str, data: Any, options: JobOptions, trace: str | None = None) -> Placed:
        """Checks and encodes a job for ``add``, and chooses its partition."""
        spread = self.spread
        spread.check(options)
        number = spread.choose(options)
        placed = Placed(spread.broker(number).encode(name, data, options, trace))
        placed.partition = number
        job_id = options.job_id
        if job_id is not None:
            if spread.home(job_id) != number:
                spread.placed[job_id] = number
            if len(spread.sizes) > 1:
                own = {partition_of(job_id, size) for size in spread.sizes} - {number}
                placed.elsewhere = tuple(one for one in own if one < spread.layout.served)
        return placed

    async def add(
        self, jobs: Sequence[Any], *, timeout: float | None = None, replicated: bool = False
    ) -> list[Added]:
        """Adds encoded jobs, each in its partition; an error leaves the others added."""
        added = []
        for one in await self.add_each(jobs, timeout=timeout, replicated=replicated):
            if isinstance(one, OxcartError):
                raise one
            added.append(one)
        return added

    async def add_each(
        self,
        jobs: Sequence[Any],
        *,
        timeout: float | None = None,
        replicated: bool = False,
        whole: bool = False,
    ) -> list[Added | OxcartError]:
        """As ``add``, with the error of a refused job in its place; ``whole`` holds for each partition."""
        places: dict[int, list[int]] = {}
        found: dict[int, Added | OxcartError] = {}
        for at, job in enumerate(jobs):
            if job.elsewhere and (existing := await self._existing(job)) is not None:
                found[at] = existing
                self.spread.placed.pop(job[0], None)
                continue
            places.setdefault(job.partition, []).append(at)

        async def send(number: int, indexes: list[int]) -> None:
            self.spread.began(number, len(indexes))
            try:
                part = [jobs[at] for at in indexes]
                broker = self.spread.broker(number)
                answers = await broker.add_each(part, timeout=timeout, replicated=replicated, whole=whole)
            except BrokerError as error:
                answers = [error] * len(indexes)
            finally:
                self.spread.began(number, -len(indexes))
            found.update(zip(indexes, answers, strict=True))
            if self.spread.placed:
                for at in indexes:
                    self.spread.placed.pop(jobs[at][0], None)

        if len(places) == 1:
            await send(*next(iter(places.items())))
        else:
            await asyncio.gather(*(send(number, indexes) for number, indexes in places.items()))
        return [found[at] for at in range(len(jobs))]

    async def _existing(self, job: Placed) -> Added | None:
        for number in job.elsewhere:
            if await self.spread.broker(number).states([job[0]]) != ["unknown"]:
                return Added(job[0], created=False)
        return None

    # -- running

    async def claim(self, ask: Ask) -> Claimed:
        """Claims ready jobs from one partition after another, beginning with another one each time."""
        await self.spread.ready()
        all_of_them = Claimed([])
        brokers = self.spread.brokers()
        turn = next(self._turn) % len(brokers)
        closed = []
        for broker in brokers[turn:] + brokers[:turn]:
            left = ask.count - len(all_of_them.jobs)
            if left <= 0 and ask.count > 0:
                all_of_them.more = True
                break
            part = await broker.claim(msgspec.structs.replace(ask, count=left))
            self._claimed |= {job.id: broker for job in part.jobs}
            all_of_them.jobs += part.jobs
            all_of_them.active += part.active
            all_of_them.orphans = [*all_of_them.orphans, *part.orphans]
            all_of_them.more |= part.more
            all_of_them.due_ms = _soonest(all_of_them.due_ms, part.due_ms)
            all_of_them.limited_ms = max(all_of_them.limited_ms, part.limited_ms)
            closed.append(part.closed)
        all_of_them.closed = bool(closed) and all(closed)
        return all_of_them

    async def finish(self, outcomes: Sequence[Outcome], ask: Ask = NOTHING) -> tuple[list[Code], Claimed]:
        """Finishes attempts in their partitions, and then claims."""
        brokers = await self._of([one.id for one in outcomes])
        codes: dict[int, Code] = {}
        only_end = msgspec.structs.replace(ask, count=0)
        for broker in dict.fromkeys(brokers):
            places = [at for at, one in enumerate(brokers) if one is broker]
            answers, _ = await broker.finish([outcomes[at] for at in places], only_end)
            codes |= dict(zip(places, answers, strict=True))
        for one in outcomes:
            self._claimed.pop(one.id, None)
        claimed = await self.claim(ask) if ask.count else Claimed([])
        return [codes[at] for at in range(len(outcomes))], claimed

    async def renew(self, leases: Sequence[Lease], lock_ms: int) -> list[str]:
        """Renews leases; returns the ids that were refused."""
        brokers = await self._of([one.id for one in leases])
        refused: list[str] = []
        for broker in dict.fromkeys(brokers):
            own = [lease for lease, one in zip(leases, brokers, strict=True) if one is broker]
            refused += await broker.renew(own, lock_ms)
        return refused

    async def _of(self, ids: Sequence[str]) -> list[BullMQBroker]:
        found = await self.spread.find([one for one in ids if one not in self._claimed])
        return [self._claimed.get(one) or found[one] for one in ids]

    async def recover(
        self, *, max_stalled: int = 1, interval_ms: int = 30_000, outage: Outage | None = None
    ) -> Recovered:
        """Recovers jobs whose worker is gone, in all partitions."""
        parts = await self.spread.each(
            lambda one: one.recover(max_stalled=max_stalled, interval_ms=interval_ms, outage=outage)
        )
        ids = [job_id for part in parts for job_id in part.ids]
        return Recovered(ids, all(part.ran for part in parts), max(part.wait_ms for part in parts))

    async def appear(self, outage: Outage) -> bool:
        """Renews the sign of life of all partitions; returns whether every one before was still valid."""
        return all(await self.spread.each(lambda one: one.appear(outage)))

    async def promote(self, most: int = 250) -> tuple[int, int]:
        """Promotes due jobs in all partitions; returns how many, and when the next is due."""
        parts = await self.spread.each(lambda one: one.promote(most))
        self.next_expiry = 0
        for broker in self.spread.brokers():
            self.next_expiry = _soonest(self.next_expiry, broker.next_expiry)
        due = 0
        for _, one in parts:
            due = _soonest(due, one)
        return sum(moved for moved, _ in parts), due

    async def expire(self) -> int:
        """Ends jobs whose lifetime has expired; returns how many."""
        return sum(await self.spread.each(lambda one: one.expire()))

    # -- the queue

    async def pause(self) -> None:
        """Stops claims in all partitions."""
        await self.spread.each(lambda one: one.pause())

    async def resume(self) -> None:
        """Allows claims again."""
        await self.spread.each(lambda one: one.resume())

    async def is_paused(self) -> bool:
        """Whether all partitions that get new jobs are paused."""
        paused = await self.spread.each(lambda one: one.is_paused())
        return all(paused[: self.spread.layout.size])

    async def kept_seconds(self) -> tuple[int | None, int | None]:
        """Returns how long completed and failed jobs stay that have no retention, as partition 0 has it."""
        return await self._first.kept_seconds()

    async def counts(self) -> dict[str, int]:
        """Returns how many jobs are in each wire state, over all partitions."""
        return _summed(await self.spread.each(lambda one: one.counts()))

    async def counts_at_once(self) -> dict[str, int]:
        """As ``counts``, all states of a partition at one moment."""
        return _summed(await self.spread.each(lambda one: one.counts_at_once()))

    async def counts_over_lanes(self) -> dict[str, int]:
        """Returns how many jobs of the partitions, and of lanes that peers made there, are in each state."""
        return _summed(await self.spread.each(lambda one: one.counts_over_lanes()))

    async def counts_of_each(self) -> list[dict[str, int]]:
        """Returns the counts of each partition, by its number."""
        return await self.spread.each(lambda one: one.counts_over_lanes())

    # -- jobs

    async def set_progress(self, job_id: str, progress: Any) -> None:
        """Writes a job's progress."""
        await (await self.spread.holder(job_id)).set_progress(job_id, progress)

    async def update_data(self, job_id: str, data: Any) -> None:
        """Replaces a job's payload."""
        await (await self.spread.holder(job_id)).update_data(job_id, data)

    async def set_checkpoint(self, job_id: str, token: str, body: bytes) -> None:
        """Stores a running job's checkpoint, under its lease."""
        await (await self.spread.holder(job_id)).set_checkpoint(job_id, token, body)

    async def change_delay(self, job_id: str, delay_ms: int) -> None:
        """Changes a delayed job's delay."""
        await (await self.spread.holder(job_id)).change_delay(job_id, delay_ms)

    async def promote_job(self, job_id: str) -> None:
        """Promotes a delayed job now."""
        await (await self.spread.holder(job_id)).promote_job(job_id)

    async def retry_job(self, job_id: str, state: str, *, lifo: bool = False, reset: bool = False) -> None:
        """Lets a finished job run again."""
        await (await self.spread.holder(job_id)).retry_job(job_id, state, lifo=lifo, reset=reset)

    async def remove_job(self, job_id: str, *, children: bool = False) -> None:
        """Removes a job."""
        await (await self.spread.holder(job_id)).remove_job(job_id, children=children)

    # -- reading

    async def get(self, job_ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        """Reads jobs."""
        return await self._read(job_ids, lambda one, ids: one.get(ids, lenient=lenient))

    async def look(self, job_ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        """As ``get``, with the jobs' formal states."""
        return await self._read(job_ids, lambda one, ids: one.look(ids, lenient=lenient))

    async def states(self, job_ids: Sequence[str]) -> list[str]:
        """Returns the wire states of jobs."""
        found = await self._read(job_ids, lambda one, ids: one.states(ids), "unknown")
        return [state or "unknown" for state in found]

    async def ended(self, job_id: str) -> Ended:
        """Returns the stored end of a job."""
        return await (await self.spread.holder(job_id)).ended(job_id)

    async def _read(
        self,
        job_ids: Sequence[str],
        read: Callable[[BullMQBroker, list[str]], Awaitable[Sequence[T | None]]],
        missing: T | None = None,
    ) -> list[T | None]:
        """Reads jobs in their homes, and those that are not there in all other partitions."""
        await self.spread.ready()
        found: dict[str, T | None] = {}
        homes: dict[int, list[str]] = {}
        for job_id in dict.fromkeys(job_ids):
            homes.setdefault(self.spread.home(job_id), []).append(job_id)
        answers = await asyncio.gather(
            *(read(self.spread.broker(number), ids) for number, ids in homes.items())
        )
        for ids, jobs in zip(homes.values(), answers, strict=True):
            found |= dict(zip(ids, jobs, strict=True))
        lost = [job_id for job_id, one in found.items() if one == missing]
        if lost:
            for everyone in (await self.spread.anywhere(lambda one: read(one, lost))).values():
                found |= {job_id: one for job_id, one in zip(lost, everyone, strict=True) if one != missing}
        return [found[job_id] for job_id in job_ids]

    async def page(self, state: str, first: int, last: int, *, oldest: bool = False) -> list[Job]:
        """Reads a range of jobs of a state, merged from all partitions."""
        return await merged_page(await self.spread.current(), state, first, last, oldest=oldest)

    async def ids_beginning(self, start: str, most: int) -> list[str]:
        """Returns the ids of jobs that begin with a text, sorted."""
        parts = await self.spread.each(lambda one: one.ids_beginning(start, most))
        return sorted({job_id for part in parts for job_id in part})

    # -- workers

    @property
    def registry(self) -> None:
        """Each partition has a registry of its own."""
        return None

    async def workers(self) -> list[WorkerRecord]:
        """Returns the living workers of the partitions."""
        parts = await self.spread.each(lambda one: one.workers())
        by_id = {record.id: record for part in parts for record in part}
        return [by_id[one] for one in sorted(by_id)]

    async def unroutable(self) -> dict[str, int]:
        """Returns how many jobs wait whose target no living worker matches; only peers make such jobs."""
        summed: Counter[str] = Counter()
        for part in await self.spread.each(lambda one: one.unroutable()):
            summed.update(part)
        return dict(summed)

    async def unroutable_page(self, state: str, first: int, last: int, *, oldest: bool = False) -> list[Job]:
        """Reads a range of such jobs of each lane of each partition."""
        parts = await self.spread.each(lambda one: one.unroutable_page(state, first, last, oldest=oldest))
        return [job for part in parts for job in part]

    # -- the connections

    @property
    def server(self) -> Server:
        """The server of partition 0."""
        return self._first.server

    @property
    def caller(self) -> Caller:
        """The connection of partition 0."""
        return self._first.caller

    @property
    def keys(self) -> QueueKeys:
        """The keys of partition 0."""
        return self._first.keys

    @property
    def site(self) -> Hashable:
        """The whole queue has no single site."""
        return id(self)

    @property
    def server_name(self) -> str:
        """Names the servers in log lines."""
        return ", ".join(dict.fromkeys(one.server_name for one in self.spread.brokers()))

    @property
    def known_url(self) -> str | None:
        """The URL of the cluster with the nodes that are known by now; None for single servers."""
        return self._first.known_url

    @property
    def place(self) -> Hashable:
        """The partitions fail apart."""
        return id(self)

    @property
    def is_connected(self) -> bool:
        """Whether all connections that were used stand at this moment."""
        return all(one.is_connected for one in self.spread.brokers())

    @property
    def waits_for_slot(self) -> bool:
        """Whether the last refusal concerned a slot alone."""
        return self._first.waits_for_slot

    @property
    def client_id(self) -> str:
        """Names this client."""
        return self._first.client_id

    def job_id_of(self, key: str) -> str | None:
        """Returns the id in the full key of a job in any partition; None for a key of another queue."""
        # The keys of partitions differ by their number alone.
        start, _, end = self._first.keys.base.rpartition("0")
        number, found, job_id = key.removeprefix(start).partition(f"{end}:")
        return job_id if key.startswith(start) and found and number.isdecimal() else None

    def open_events(self, *, unseals: bool = False) -> MergedEvents:
        """Opens the events of all partitions, merged."""
        return MergedEvents(self.spread, unseals=unseals)

    def open_wait(self, brokers: Sequence[Any], worker: str) -> WorkWait:
        """A worker waits for the partitions themselves."""
        self._only_partitions("waiting for jobs")

    def open_inbox(self, brokers: Mapping[int, Any]) -> Inbox:
        """A worker receives requests in the partitions themselves."""
        self._only_partitions("receiving requests to cancel jobs")

    async def cancel_requests(self, attempts: Sequence[tuple[Any, str, int]]) -> list[CancelRequest]:
        """A worker reads requests in the partitions themselves."""
        self._only_partitions("reading requests to cancel jobs")

    def _only_partitions(self, words: str) -> NoReturn:
        raise NotSupported("partitioned", "worker", words, "pass the queue to a Worker, which opens them")

    def attach(
        self,
        *,
        holding: Callable[[], bool],
        on_script: Callable[[str, float], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> None:
        """Attaches a worker to the connections."""
        for one in self.spread.brokers():
            one.attach(holding=holding, on_script=on_script, on_reconnect=on_reconnect)

    def serve(self, abilities: Abilities) -> None:
        """Sets the abilities of a worker that claims with this broker."""

    async def has_targets(self) -> bool:
        """Returns whether jobs have targets, which only peers can give them."""
        return any(await self.spread.each(lambda one: one.has_targets()))

    async def take_watch(self, worker_id: str, life_ms: int) -> bool:
        """Makes a worker the one that watches the queue, unless another one does."""
        return await self._first.take_watch(worker_id, life_ms)

    async def take_duty(self, group: str, worker_id: str, life_ms: int) -> int:
        """Makes a worker the one that maintains a group of queues, unless another one does."""
        return await self._first.take_duty(group, worker_id, life_ms)

    async def with_work(self, brokers: Sequence[Any]) -> list[int]:
        """Returns all of them: a worker asks the partitions instead."""
        return list(range(len(brokers)))

    def share_connection(self, other: Any) -> None:
        """Refused: a worker shares the connections of partitions."""
        self._only_partitions("share_connection")

    async def remove_all_keys(self) -> None:
        """Removes every key of every partition; for tests."""
        await self.spread.each(lambda one: one.remove_all_keys())

    async def now(self) -> int:
        """Reads the time of the server of partition 0, in ms."""
        return await self._first.now()

    async def close(self) -> None:
        """Closes the connections."""
        await self.spread.close()


def _soonest(one: int, other: int) -> int:
    return min(one or other, other or one)


def _summed(rows: Sequence[Mapping[str, int]]) -> dict[str, int]:
    summed: dict[str, int] = {}
    for row in rows:
        for state, many in row.items():
            summed[state] = summed.get(state, 0) + many
    return summed
