"""Hears which of a worker's jobs are to be cancelled, and tells the worker.

Whoever cancels a running job leaves a note in a set of the worker that holds it; the worker blocks on that
set, on a connection of its own, and so hears of it within milliseconds. It does so only while a job has been
running for a moment: short jobs cost nothing, and an idle worker has nothing to cancel. A note that was read
and lost with its connection stands in the job as well; after a loss all held jobs are looked at.

May touch: the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from oxcart.broker.bullmq.keys import Keys
from oxcart.broker.connection import Reconnect
from oxcart.broker.link import ReplyError
from oxcart.broker.port import ServedBroker
from oxcart.engine.running import RunningJob
from oxcart.engine.waiter import by_slot
from oxcart.model.errors import BrokerError

log = logging.getLogger("oxcart.worker")

#: Jobs that end sooner, in seconds, are not listened for.
PATIENCE = 0.3
#: Longest single block, in seconds.
POLL = 5.0


class Request(msgspec.Struct, frozen=True):
    """Somebody wants a running job cancelled.

    Attributes:
        id: The job.
        starts: The fencing number of the attempt that is meant.
        reason: Why.
        force: Whether the job has ended already, so that nothing its handler returns will be taken.
    """

    id: str
    starts: int
    reason: str
    force: bool = False


class Cancellations:
    """What one worker hears of.

    Args:
        brokers: The worker's queues.
        held: The jobs held of a queue and its lanes, by id.
        stop: Takes a job that was cancelled: the job, why, and whether by force.
        reconnect: Pauses between attempts to reach a lost server.
    """

    def __init__(
        self,
        brokers: Sequence[ServedBroker],
        *,
        held: Callable[[int], dict[str, RunningJob]],
        stop: Callable[[RunningJob, str, bool], None],
        reconnect: Reconnect,
    ) -> None:
        self._brokers = brokers
        self._held = held
        self._stop = stop
        self._looks: set[asyncio.Task[None]] = set()
        #: Set when a job has begun; cleared when nothing runs any more.
        self.needed = asyncio.Event()
        self._listeners = [
            _Listener({index: brokers[index] for index in indexes}, self, reconnect)
            for indexes in by_slot(brokers)
        ]

    async def run(self) -> None:
        """Listens while jobs run, until cancelled."""
        try:
            await asyncio.gather(*(self._serve(one) for one in self._listeners))
        finally:
            for look in self._looks:
                look.cancel()
            for one in self._listeners:
                await one.close()

    async def _serve(self, listener: _Listener) -> None:
        """Lets one listener listen whenever jobs of its queues run; each has its own times."""
        while True:
            await self.needed.wait()
            await asyncio.sleep(PATIENCE)
            await listener.run()
            if not self.is_busy(range(len(self._brokers))):
                self.needed.clear()

    def is_busy(self, indexes: Iterable[int]) -> bool:
        """Whether jobs of some queues are held."""
        return any(self._held(index) for index in indexes)

    def told(self, index: int, request: Request) -> None:
        """Takes a request that was heard."""
        job = self._held(index).get(request.id)
        if job is None or job.fencing != request.starts:
            return  # it has ended meanwhile, or somebody else runs it
        log.info(
            "queue %s: job %s is cancelled: %s",
            job.queue,
            job.id,
            request.reason,
            extra=job.log_fields(),
        )
        self._stop(job, request.reason, request.force)

    def look_soon(self, index: int, job: RunningJob) -> None:
        """Sees whether a lease is lost because somebody cancelled the job by force: then it is stopped."""
        task = asyncio.create_task(self._look_alone(index, job), name="oxcart-look")
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    async def _look_alone(self, index: int, job: RunningJob) -> None:
        try:
            await self.look(index, [job])
        except BrokerError as error:
            log.warning("job %s: why its lease was lost cannot be told: %s", job.id, error)

    async def look(self, index: int, jobs: list[RunningJob]) -> None:
        """Looks at jobs themselves: were they cancelled, with a note that nobody read?"""
        if not jobs:
            return
        broker = self._brokers[index]
        keys = (broker.keys if job.station is None else job.station.broker.keys for job in jobs)
        fields = ("ats", "ox:cancel", "ox:category")
        commands = [("HMGET", names.job(job.id), *fields) for names, job in zip(keys, jobs, strict=True)]
        for job, (starts, asked, category) in zip(jobs, await broker.caller.pipeline(commands), strict=True):
            if starts != b"%d" % job.fencing:
                continue
            ended = category == b"cancelled"
            if asked is not None or ended:
                reason = (asked or b"cancelled").decode("utf-8", "replace")
                self.told(index, Request(job.id, job.fencing, reason, ended))

    async def look_at_all(self, indexes: Iterable[int]) -> None:
        """Looks at everything that is held of some queues."""
        for index in indexes:
            await self.look(index, list(self._held(index).values()))


class _Listener:
    """The blocking wait for requests in one server slot."""

    def __init__(
        self, brokers: Mapping[int, ServedBroker], worker: Cancellations, reconnect: Reconnect
    ) -> None:
        self._indexes = list(brokers)
        self._worker = worker
        self._reconnect = reconnect
        first = next(iter(brokers.values()))
        self._link = first.server.link(first.slot)
        self._places: dict[bytes, int] = {}
        for index, broker in brokers.items():
            client = broker.caller.client_id
            self._places[broker.keys.cancellations(client).encode()] = index
            if broker.lane is not None:  # a lane that its queue knows of is spoken to through that queue
                base = Keys(broker.base, broker.keys.prefix, broker.keys.tagged)
                self._places[base.cancellations(client).encode()] = index
        self._missed = False

    async def close(self) -> None:
        await self._link.close()

    async def run(self) -> None:
        """Listens as long as jobs of these queues run."""
        attempt = 0
        while self._worker.is_busy(self._indexes):
            try:
                if self._missed:
                    await self._worker.look_at_all(self._indexes)
                    self._missed = False
                await self._listen()
                attempt = 0
            except (BrokerError, ReplyError) as error:
                attempt, self._missed = attempt + 1, True
                if isinstance(error, ReplyError):
                    self._link.drop("the server refused")
                if attempt == 5:
                    log.warning("requests to cancel jobs cannot be heard: %s", error)
                await asyncio.sleep(self._reconnect.pause(attempt, holding=True))

    async def _listen(self) -> None:
        popped = await self._link.call("BZPOPMIN", *self._places, f"{POLL:.1f}", timeout=POLL + 5.0)
        if popped is None:
            return
        try:
            request = msgspec.json.decode(popped[1], type=Request)
        except msgspec.MsgspecError as error:
            log.warning("a request to cancel a job makes no sense: %s", error)
            return
        self._worker.told(self._places[popped[0]], request)
