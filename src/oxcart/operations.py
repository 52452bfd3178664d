"""What an operator does with a whole queue: clean, drain, obliterate, retry, promote, count, trim, publish.

These are methods of ``Queue``. Each works in bounded steps, so that the server is never held for long however
many jobs there are, and tells how far it is after every step:

    await queue.clean("completed", grace="7d", progress=lambda at: print(at.done, "of", at.total))
    await queue.retry_all(since=yesterday)

To stop one, cancel it: what it has done stays done, and calling it again goes on.

May touch: the server, through the queue's broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, cast

from oxcart.broker.bridge import operations as bridge
from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.broker.bullmq import operations, rescue
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.operations import Series
from oxcart.broker.factory import native
from oxcart.broker.port import ServedBroker
from oxcart.broker.progress import Progress, Told
from oxcart.model import payload
from oxcart.model.duration import Duration, parse_ms
from oxcart.model.errors import QueueBusy, ValidationError
from oxcart.model.event import EVENT_NAMES
from oxcart.model.options import MAX_PRIORITY

__all__ = ["Moment", "Operations", "Progress", "Series", "Told"]

#: A time: a datetime with a zone, or ms since 1970 as the wire has it.
Moment = datetime | int

#: What can be cleaned, and where the wire keeps it.
CLEANABLE = {
    "completed": ("completed",),
    "failed": ("failed",),
    "waiting": ("wait", "paused"),
    "prioritized": ("prioritized",),
    "delayed": ("delayed",),
    "active": ("active",),
}
FINISHED = ("failed", "completed")


class Operations:
    """The part of a queue that deals with many jobs at once."""

    @property
    def broker(self) -> ServedBroker:
        """The storage of this queue in the running event loop."""
        raise NotImplementedError

    @property
    def _store(self) -> BullMQBroker:
        return self._native("lanes")

    def _native(self, feature: str) -> BullMQBroker:
        without = "this needs a server, and a queue in inline or manual mode has none"
        return native(self.broker, feature, without)

    @property
    def _bridge(self) -> BridgeBroker | None:
        """The storage, where it is that of a Bridge job type."""
        broker = self.broker
        return broker if isinstance(broker, BridgeBroker) else None

    async def _stores(self) -> list[BullMQBroker]:
        """The queue itself and its lanes: what is done to a queue is done to all of them."""
        return await self._store.lanes.brokers()

    async def clean(
        self,
        state: str = "completed",
        *,
        grace: Duration = 0,
        limit: int | None = None,
        progress: Told | None = None,
    ) -> int:
        """Removes old jobs of a state; returns how many.

        Active jobs are removed only where no worker holds them any more; the next runs of schedulers stay.

        Args:
            state: ``completed``, ``failed``, ``waiting``, ``prioritized``, ``delayed`` or ``active``.
            grace: Jobs younger than this stay. A finished job counts from its end, another one from its last
                start, and one that never started from its creation.
            limit: How many to remove at most, oldest first; None for all.
            progress: Told after every step.

        Raises:
            ValidationError: There is no such state to clean.
        """
        if state not in CLEANABLE:
            raise ValidationError("state", "one of " + ", ".join(CLEANABLE), state)
        most = _limit(limit)
        before = await (self._bridge or self._store).now() - parse_ms(grace, "grace")
        done = 0
        if (of_type := self._bridge) is not None:
            for key in CLEANABLE[state]:
                done += await bridge.clean(of_type, key, before, limit=most, told=_after(0, progress))
            return done
        for broker in await self._stores():
            for key in CLEANABLE[state]:
                if most is not None and done >= most:
                    return done
                rest = None if most is None else most - done
                told = _after(done, progress)
                done += await operations.clean(broker, key, before, limit=rest, told=told)
        return done

    async def drain(self, *, delayed: bool = False, progress: Told | None = None) -> int:
        """Removes every job that waits; returns how many.

        Running and finished jobs stay, and so do the next runs of schedulers.

        Args:
            delayed: Whether jobs whose time has not come go as well.
            progress: Told after every step.
        """
        done = 0
        if (of_type := self._bridge) is not None:
            return await bridge.drain(of_type, delayed=delayed, told=_after(0, progress))
        for broker in await self._stores():
            done += await operations.drain(broker, delayed=delayed, told=_after(done, progress))
        return done

    async def obliterate(self, *, force: bool = False, progress: Told | None = None) -> int:
        """Removes the queue with everything in it, for good; returns how many jobs it had.

        The queue is paused first. One that is used afterwards begins anew.

        Args:
            force: Whether jobs that workers hold go as well. Their results will be refused.
            progress: Told after every step.

        Raises:
            QueueBusy: Workers hold jobs of it, and ``force`` was not said. Nothing has changed.
        """
        if (of_type := self._bridge) is not None:
            return await bridge.obliterate(of_type, force=force, told=_after(0, progress))
        brokers = await self._stores()
        if not force and len(brokers) > 1:
            active = (await self._store.counts_over_lanes())["active"]
            if active:
                raise QueueBusy(self._store.queue, active)
        done = 0
        for broker in reversed(brokers):
            done += await operations.obliterate(broker, force=force, told=_after(done, progress))
        return done

    async def retry_all(
        self,
        state: str = "failed",
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        limit: int | None = None,
        reset: bool = False,
        progress: Told | None = None,
    ) -> int:
        """Lets all failed (or all completed) jobs run again; returns how many.

        Args:
            state: ``failed`` or ``completed``.
            since: Only jobs that ended at this time or later.
            until: Only jobs that ended at this time or earlier; now unless given.
            limit: How many at most, in the order in which they ended; None for all.
            reset: Whether to count their attempts from the beginning.
            progress: Told after every step.
        """
        if state not in FINISHED:
            raise ValidationError("state", "one of " + ", ".join(FINISHED), state)
        most, done = _limit(limit), 0
        since_ms = 0 if since is None else _ms(since, "since")
        until_ms = await (self._bridge or self._store).now() if until is None else _ms(until, "until")
        if (of_type := self._bridge) is not None:
            return await bridge.retry_all(
                of_type,
                cast(Literal["failed", "completed"], state),
                since_ms=since_ms,
                until_ms=until_ms,
                limit=most,
                reset=reset,
                told=_after(0, progress),
            )
        for broker in await self._stores():
            if most is not None and done >= most:
                break
            done += await operations.retry_all(
                broker,
                cast(Literal["failed", "completed"], state),
                since_ms=since_ms,
                until_ms=until_ms,
                limit=None if most is None else most - done,
                reset=reset,
                told=_after(done, progress),
            )
        return done

    async def promote_all(
        self, *, until: Moment | None = None, limit: int | None = None, progress: Told | None = None
    ) -> int:
        """Lets delayed jobs run now, each by its priority; returns how many.

        Args:
            until: Only jobs that are due at this time or earlier.
            limit: How many at most, the earliest due first; None for all.
            progress: Told after every step.
        """
        most, done = _limit(limit), 0
        until_ms = None if until is None else _ms(until, "until")
        if (of_type := self._bridge) is not None:
            return await bridge.promote_all(of_type, until_ms=until_ms, limit=most, told=_after(0, progress))
        for broker in await self._stores():
            if most is not None and done >= most:
                break
            rest = None if most is None else most - done
            told = _after(done, progress)
            done += await operations.promote_all(broker, until_ms=until_ms, limit=rest, told=told)
        return done

    async def remove_orphans(self, *, dry_run: bool = False, progress: Told | None = None) -> list[str]:
        """Removes jobs that are in no state and so would never run nor be removed; returns their ids.

        ``oxcart doctor --rescue`` puts them back instead, where they have not ended.

        Args:
            dry_run: Only say which.
            progress: Told after every step; here it counts keys of the server.
        """
        told = _after(0, progress)

        def scanned(at: rescue.Progress) -> None:
            told(Progress(at.step, at.keys, at.total))

        if (of_type := self._bridge) is not None:
            return await bridge.remove_orphans(of_type, dry_run=dry_run, progress=scanned)
        return await rescue.remove_orphans(self._store, dry_run=dry_run, progress=scanned)

    async def counts_per_priority(self, priorities: Iterable[int] | None = None) -> dict[int, int]:
        """How many jobs wait with each priority; 0 is that of jobs without one, which Bridge has not.

        Args:
            priorities: Which to count; all that some job has unless given.
        """
        asked = None if priorities is None else list(priorities)
        for one in asked or ():
            if type(one) is not int or not 0 <= one <= MAX_PRIORITY + 1:
                raise ValidationError("priorities", f"integers from 0 to {MAX_PRIORITY}", one)
        found: dict[int, int] = {}
        if (of_type := self._bridge) is not None:
            return await bridge.counts_per_priority(of_type, asked)
        for broker in await self._stores():
            for priority, count in (await operations.counts_per_priority(broker, asked)).items():
                found[priority] = found.get(priority, 0) + count
        return found

    async def metrics(self, state: str = "completed", *, first: int = 0, last: int = -1) -> Series:
        """How many jobs completed (or failed) per minute.

        Workers count where they are told to: ``Worker(…, metrics=…)`` here, the option ``metrics`` in Node.

        Args:
            state: ``completed`` or ``failed``.
            first: The first point to read, the newest being 0.
            last: The last point to read; -1 for the oldest.
        """
        if state not in FINISHED:
            raise ValidationError("state", "one of " + ", ".join(FINISHED), state)
        store = self._native("minute_counts")
        return await operations.series(store, cast(Literal["failed", "completed"], state), first, last)

    async def trim_events(self, keep: int, *, progress: Told | None = None) -> int:
        """Drops the oldest events; returns how many.

        Args:
            keep: About how many stay. The stream is cut by whole nodes, so up to a hundred more may.
            progress: Told after every step.
        """
        if type(keep) is not int or keep < 0:
            raise ValidationError("keep", "an integer, at least 0", keep)
        return await operations.trim_events(self._bridge or self._store, keep, told=_after(0, progress))

    async def publish(self, event: str, /, keep_events: int | None = None, **fields: Any) -> str:
        """Adds an event of your own to the queue's events; returns its id.

        Readers of the queue's events see it among the others, in Python as in Node. Text stays as it is, and
        every other value is written as JSON.

        Args:
            event: Its name; not one that the queue itself uses.
            keep_events: About how many events of the queue stay; what the queue keeps anyway unless given.
            **fields: What it tells.

        Raises:
            ValidationError: The name is taken, or a field cannot be written as JSON.
        """
        if not event or not isinstance(event, str):
            raise ValidationError("event", "a name", event)
        if event in EVENT_NAMES:
            raise ValidationError("event", "a name that the queue itself does not use", event)
        if "event" in fields:
            raise ValidationError("event", "given once", fields["event"])
        if keep_events is not None and (type(keep_events) is not int or keep_events < 1):
            raise ValidationError("keep_events", "an integer, at least 1", keep_events)
        texts = {
            name: value if isinstance(value, str) else payload.encode(value, field=name)
            for name, value in fields.items()
        }
        if (of_type := self._bridge) is not None:
            return await bridge.publish(of_type, event, texts, keep_events)
        return await operations.publish(self._store, event, texts, keep_events)


def _after(done: int, progress: Told | None) -> Told:
    """What a caller is told of one part of an operation: what came before counts as well."""
    if progress is None:
        return lambda _: None
    if not done:
        return progress
    return lambda at: progress(Progress(at.step, at.done + done, at.total + done))


def _limit(limit: int | None) -> int | None:
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValidationError("limit", "an integer, at least 1", limit)
    return limit


def _ms(moment: Moment, field: str) -> int:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:  # whose noon? The producer's, the worker's and the operator's differ
            raise ValidationError(field, "a time with a zone, e.g. datetime.now(UTC)", moment)
        return int(moment.timestamp() * 1000)
    if type(moment) is not int or moment < 0:
        raise ValidationError(field, "a datetime with a zone, or ms since 1970", moment)
    return moment
