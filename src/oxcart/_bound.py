"""Per-event-loop state of a queue: its connection, pending adds and pending results."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from oxcart.broker.port import Added, Encoded, ServedBroker
from oxcart.broker.port.parts import Partitions
from oxcart.events import Results
from oxcart.model.errors import OxcartError, ResultTimeout


class Bound:
    """Per-event-loop state of a queue: its connection, pending adds and pending results."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: ServedBroker,
        add_timeout: float,
        *,
        shares: bool = False,
    ) -> None:
        self.loop = loop
        self.pid = os.getpid()
        self.broker = broker
        self.results: Results = Results(broker)
        self._add_timeout = add_timeout
        self._alone = False
        self._closing: asyncio.Event | None = None  # set when an add that is sent alone has ended
        self._shares = shares  # the connection belongs to another queue
        #: Adds of this turn of the loop: without a replica, and with one.
        self._waiting: dict[bool, list[tuple[Encoded, asyncio.Future[Added]]]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def add(self, job: Encoded, *, replicated: bool = False) -> Added:
        """Adds a job: at once if no other add is in flight, else together with the adds of this turn."""
        if self._alone or self._waiting:
            return await self._add_soon(job, replicated)
        self._alone = True
        try:
            (added,) = await self.broker.add_each([job], timeout=self._add_timeout, replicated=replicated)
        finally:
            self._alone = False
            if self._closing is not None:
                self._closing.set()
        if isinstance(added, OxcartError):
            raise added
        return added

    def _add_soon(self, job: Encoded, replicated: bool) -> asyncio.Future[Added]:
        future: asyncio.Future[Added] = self.loop.create_future()
        if not self._waiting:
            self.loop.call_soon(self._send)
        self._waiting.setdefault(replicated, []).append((job, future))
        return future

    def _send(self) -> None:
        groups, self._waiting = self._waiting, {}
        for replicated, waiting in groups.items():
            task = self.loop.create_task(self._add(waiting, replicated), name="oxcart-add")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _add(self, waiting: list[tuple[Encoded, asyncio.Future[Added]]], replicated: bool) -> None:
        try:
            jobs = [job for job, _ in waiting]
            added = await self.broker.add_each(jobs, timeout=self._add_timeout, replicated=replicated)
        except Exception as error:
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), one in zip(waiting, added, strict=True):
            if future.done():
                continue
            if isinstance(one, OxcartError):
                future.set_exception(one)
            else:
                future.set_result(one)

    async def close(self) -> None:
        """Waits for adds in flight, and closes the connection."""
        if self._alone:
            self._closing = asyncio.Event()
            await self._closing.wait()
        if self._waiting:
            await asyncio.sleep(0)  # the loop's next turn sends them
        if self._sending:
            await asyncio.wait(self._sending)
        await self.results.close()
        if not self._shares:
            await self.broker.close()


class SpreadResults(Results):
    """Waits for the ends of jobs of a partitioned queue, with one reader for each partition in use."""

    def __init__(self, broker: ServedBroker, spread: Partitions) -> None:
        super().__init__(broker)
        self._spread = spread
        self._results: dict[ServedBroker, Results] = {}

    async def wait(self, job_id: str, timeout: float | None) -> Any:
        """As ``Results.wait``, in the partition that has the job."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                holder = (await self._spread.find([job_id]))[job_id]
        except TimeoutError:
            raise ResultTimeout(f"job {job_id} has not ended within {timeout:g} s") from None
        found = self._results.get(holder)
        if found is None:
            found = self._results[holder] = Results(holder)
        left = None if timeout is None else max(0.0, timeout - (time.monotonic() - began))
        return await found.wait(job_id, left)

    async def close(self) -> None:
        """Stops listening."""
        await asyncio.gather(*(one.close() for one in self._results.values()))


class SpreadBound(Bound):
    """The state of a partitioned queue: adds of one turn share a call for each partition."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: ServedBroker,
        spread: Partitions,
        add_timeout: float,
    ) -> None:
        super().__init__(loop, broker, add_timeout)
        self._spread = spread
        self._of_partitions: dict[int, Bound] = {}
        self.results = SpreadResults(broker, spread)

    async def add(self, job: Any, *, replicated: bool = False) -> Added:
        """Adds a job, with the others for its partition."""
        if job.elsewhere:
            return (await self.broker.add([job], timeout=self._add_timeout, replicated=replicated))[0]
        number: int = job.partition
        bound = self._of_partitions.get(number)
        if bound is None:
            broker = self._spread.broker(number)
            bound = self._of_partitions[number] = Bound(self.loop, broker, self._add_timeout, shares=True)
        self._spread.began(number, 1)
        try:
            return await bound.add(job, replicated=replicated)
        finally:
            self._spread.began(number, -1)
            self._spread.placed.pop(job[0], None)

    async def close(self) -> None:
        """Waits for adds in flight, and closes the connections."""
        await asyncio.gather(*(one.close() for one in self._of_partitions.values()))
        await super().close()


class DirectlyBound(Bound):
    """The same without a server: no add waits to share a call with others."""

    async def add(self, job: Any, *, replicated: bool = False) -> Added:
        """Adds a job."""
        return (await self.broker.add([job], replicated=replicated))[0]
