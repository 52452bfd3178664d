"""Listens for cancellation requests and forwards them to the worker.

A client that cancels a running job writes a request into the inbox of the worker that runs it. The worker
blocks on its inbox, on a connection of its own, and receives the request within milliseconds. It does so only
while a job has been running for a moment: short jobs cost nothing, and an idle worker has nothing to cancel.
The job stores the request as well. After a lost connection the worker reads all of its running jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from oxcart.broker.cancellations import CancelRequest
from oxcart.broker.connection import Reconnect
from oxcart.broker.port import ServedBroker
from oxcart.engine.running import RunningJob
from oxcart.engine.waiter import by_slot
from oxcart.model.errors import BrokerError

log = logging.getLogger("oxcart.worker")

#: Seconds that a job must run before the worker listens.
PATIENCE = 0.3
#: Longest single block, in seconds.
POLL = 5.0


class Cancellations:
    """The cancellation requests of one worker.

    Args:
        brokers: The worker's queues, by their numbers.
        held: Returns the running jobs of a queue and its lanes, by id.
        stop: Receives a cancelled job, the reason, and whether the job has ended by force.
        reconnect: Pauses between attempts to reach a lost server.
    """

    def __init__(
        self,
        brokers: Mapping[int, ServedBroker],
        *,
        held: Callable[[int], dict[str, RunningJob]],
        stop: Callable[[RunningJob, str, bool], None],
        reconnect: Reconnect,
    ) -> None:
        self._brokers = brokers
        self._held = held
        self._stop = stop
        self._looks: set[asyncio.Task[None]] = set()
        #: Set when a job starts; cleared when no job runs.
        self.needed = asyncio.Event()
        numbers = list(brokers)
        self._listeners = [
            _Listener({numbers[at]: brokers[numbers[at]] for at in places}, self, reconnect)
            for places in by_slot(list(brokers.values()))
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
        """Runs one listener whenever jobs of its queues run."""
        while True:
            await self.needed.wait()
            await asyncio.sleep(PATIENCE)
            await listener.run()
            if not self.is_busy(self._brokers):
                self.needed.clear()

    def is_busy(self, indexes: Iterable[int]) -> bool:
        """Whether jobs of some queues run."""
        return any(self._held(index) for index in indexes)

    def receive(self, index: int, request: CancelRequest) -> None:
        """Stops the job that a request names."""
        job = self._held(index).get(request.id)
        if job is None or job.fencing != request.starts:
            return  # it has ended meanwhile, or another worker runs it
        log.info(
            "queue %s: job %s is cancelled: %s",
            job.queue,
            job.id,
            request.reason,
            extra=job.log_fields(),
        )
        self._stop(job, request.reason, request.force)

    def serves(self, index: int) -> bool:
        """Whether it listens for requests of a queue."""
        return index in self._brokers

    def look_soon(self, index: int, job: RunningJob) -> None:
        """Stops a job that lost its lease because a client cancelled it by force."""
        task = asyncio.create_task(self._look_alone(index, job), name="oxcart-look")
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    async def _look_alone(self, index: int, job: RunningJob) -> None:
        try:
            await self.look(index, [job])
        except BrokerError as error:
            log.warning("could not read why job %s lost its lease: %s", job.id, error, extra=job.log_fields())

    async def look(self, index: int, jobs: list[RunningJob]) -> None:
        """Reads from the jobs whether to cancel them."""
        if not jobs:
            return
        root = self._brokers[index]
        attempts = [
            (root if job.station is None else job.station.broker, job.id, job.fencing) for job in jobs
        ]
        for request in await root.cancel_requests(attempts):
            self.receive(index, request)

    async def look_at_all(self, indexes: Iterable[int]) -> None:
        """Reads all running jobs of some queues."""
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
        self._inbox = next(iter(brokers.values())).open_inbox(brokers)
        self._missed = False

    async def close(self) -> None:
        await self._inbox.close()

    async def run(self) -> None:
        """Listens while jobs of these queues run."""
        attempt = 0
        while self._worker.is_busy(self._indexes):
            try:
                if self._missed:
                    await self._worker.look_at_all(self._indexes)
                    self._missed = False
                if (received := await self._inbox.receive(POLL)) is not None:
                    self._worker.receive(*received)
                attempt = 0
            except BrokerError as error:
                attempt, self._missed = attempt + 1, True
                if attempt == 5:
                    log.warning("could not receive requests to cancel jobs, retrying: %s", error)
                await asyncio.sleep(self._reconnect.pause(attempt, holding=True))
