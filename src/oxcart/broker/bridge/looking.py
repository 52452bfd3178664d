"""What can be seen of a Bridge namespace: jobs, states, counts, and the document's monitoring list.

May touch: the server; reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import msgspec

from oxcart.broker.bridge import records
from oxcart.broker.bridge.keys import BridgeKeys
from oxcart.broker.caller import Caller
from oxcart.broker.port import Ended
from oxcart.broker.sealing import Sealer
from oxcart.model.job import Job

#: Ids that one read of a long set takes.
PAGE = 1000

STATES = ("wait", "paused", "active", "prioritized", "delayed", "waiting-children", "completed", "failed")


class Namespace(msgspec.Struct, frozen=True):
    """The document's monitoring list: how a namespace is.

    Attributes:
        waiting: Jobs that are ready.
        active: Jobs that workers hold.
        delayed: Jobs whose time has not come.
        cron: Schedules.
        dead: Dead letters.
        workers: Registered workers, and whether each has been heard of within 30 s.
        concurrent: Per job type, how many jobs are counted as running.
        processed: Jobs that completed.
        failed: Jobs that failed for good.
    """

    waiting: int
    active: int
    delayed: int
    cron: int
    dead: int
    workers: dict[str, bool]
    concurrent: dict[str, int]
    processed: int
    failed: int


class Looking:
    """The part of a broker that only reads."""

    keys: BridgeKeys
    caller: Caller
    sealer: Sealer | None
    clock: Callable[[], int]

    @property
    def queue(self) -> str:
        """The job type."""
        raise NotImplementedError

    async def get(self, job_ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        """Reads jobs."""
        return await self.look(job_ids, lenient=lenient)

    async def look(self, job_ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        """Reads jobs with their formal states.

        Raises:
            DecryptionError: The queue has keys, and a value does not open with them.
        """
        commands: list[tuple[str, str]] = []
        for job_id in job_ids:
            commands += [
                ("GET", self.keys.data(job_id)),
                ("GET", self.keys.status(job_id)),
                ("GET", self.keys.result(job_id)),
                ("GET", self.keys.progress(job_id)),
                ("HGETALL", self.keys.job(job_id)),
            ]
        answers = iter(await self.caller.pipeline(commands))
        found: list[Job | None] = []
        for job_id, raw, status, result, progress, flat in zip(
            job_ids, answers, answers, answers, answers, answers, strict=True
        ):
            if raw is None:
                found.append(None)
                continue
            pairs = iter(flat)
            run = dict(zip(pairs, pairs, strict=True))
            depends = run.pop(b"depends", None)
            job = records.decode_job(
                self.queue,
                job_id,
                raw,
                _text(status),
                run=run,
                result=result,
                progress=progress,
                pending=depends is not None,
                sealer=self.sealer,
                lenient=lenient,
            )
            found.append(job)
        return found

    async def ended(self, job_id: str) -> Ended:
        """What is known of a job's end."""
        raw, status, result = await self.caller.command(
            "MGET", self.keys.data(job_id), self.keys.status(job_id), self.keys.result(job_id)
        )
        value = records.value_of(result) if result else None
        # A client that does not keep the status still leaves a result; another leaves one with every failure.
        place = _text(status)
        finished = place in records.OVER or value is not None or (bool(result) and place not in records.LIVE)
        return Ended(raw is not None, finished, value)

    async def states(self, job_ids: Sequence[str]) -> list[str]:
        """Tells the states of jobs, in the words that both protocols share."""
        commands: list[tuple[str, str] | tuple[str, str, str]] = []
        for job_id in job_ids:
            commands += [("GET", self.keys.status(job_id)), ("ZSCORE", self.keys.pending(), job_id)]
        answers = iter(await self.caller.pipeline(commands))
        return [
            "waiting-children" if pending is not None else records.PLACES.get(_text(status) or "", "unknown")
            for status, pending in zip(answers, answers, strict=True)
        ]

    async def counts_over_lanes(self) -> dict[str, int]:
        """The same as ``counts``: a job with a target is one of its type."""
        return await self.counts()

    async def counts(self) -> dict[str, int]:
        """How many jobs of the type are in each state.

        Waiting jobs of other clients are counted once a worker of ours has found them in the list.
        """
        lanes = await self.caller.command("SMEMBERS", self.keys.lanes())
        commands = [("ZCARD", self.keys.lane(_id(lane))) for lane in lanes]
        commands += [
            ("GET", self.keys.concurrent(self.queue)),
            ("ZCARD", self.keys.ended("completed")),
            ("ZCARD", self.keys.ended("failed")),
            ("ZCARD", self.keys.ended("cancelled")),
        ]
        *waiting, running, completed, dead, cancelled = await self.caller.pipeline(commands)
        return {
            "wait": sum(waiting),
            "paused": 0,
            "active": max(0, int(running or 0)),
            "prioritized": 0,
            "delayed": len(await self._of_type(self.keys.delayed())),
            "waiting-children": len(await self._of_type(self.keys.pending())),
            "completed": completed,
            "failed": dead + cancelled,
        }

    async def page(self, state: str, first: int, last: int, *, oldest: bool = False) -> list[Job]:
        """Reads a range of jobs of a state; ids without a job are left out."""
        if state == "wait":
            lanes = await self.caller.command("SMEMBERS", self.keys.lanes())
            ids = await self._merged([self.keys.lane(_id(lane)) for lane in lanes], last + 1, oldest)
        elif state in ("completed", "failed"):
            ended = [state] if state == "completed" else ["failed", "cancelled"]
            ids = await self._merged([self.keys.ended(one) for one in ended], last + 1, oldest)
        else:
            ids = await self._ids(state)
            if not oldest:
                ids.reverse()
        jobs = await self.look(ids[first : last + 1], lenient=True)
        return [job for job in jobs if job is not None]

    async def _merged(self, keys: Sequence[str], most: int, oldest: bool) -> list[str]:
        """The first members of some sorted sets together, or the last ones first; so many at most."""
        scored: list[tuple[float, bytes]] = []
        if most > 0:
            way = () if oldest else ("REV",)
            for flat in await self.caller.pipeline(
                [("ZRANGE", key, 0, most - 1, *way, "WITHSCORES") for key in keys]
            ):
                scored += zip(map(float, flat[1::2]), flat[::2], strict=True)
        return [_id(raw) for _, raw in sorted(scored, reverse=not oldest)[:most]]

    async def _ids(self, state: str) -> list[str]:
        """The ids of the type's jobs of some other state, oldest first."""
        if state == "active":
            return [_id(raw) for raw in await self.caller.command("SMEMBERS", self.keys.held_of(self.queue))]
        if state == "delayed":
            return await self._of_type(self.keys.delayed())
        if state == "waiting-children":
            return await self._of_type(self.keys.pending())
        return []

    async def _of_type(self, key: str) -> list[str]:
        """The members of a sorted set of all types that are of this one, in steps."""
        found: list[str] = []
        at = 0
        while True:
            ids = await self.caller.command("ZRANGE", key, at, at + PAGE - 1)
            if not ids:
                return found
            facts = await self.caller.command("HMGET", self.keys.facts(), *ids)
            unread = [one for one, packed in zip(ids, facts, strict=True) if packed is None]
            raws: list[bytes | None] = []
            if unread:
                raws = await self.caller.command("MGET", *(self.keys.data(_id(one)) for one in unread))
            types = {
                one: records.read_record(raw).type
                for one, raw in zip(unread, raws, strict=True)
                if raw is not None
            }
            for one, packed in zip(ids, facts, strict=True):
                kind = types.get(one) if packed is None else msgpack.unpackb(packed)[0]
                if kind == self.queue:
                    found.append(_id(one))
            at += len(ids)

    async def namespace(self) -> Namespace:
        """The document's monitoring list, and nothing that would have to be looked for."""
        keys = self.keys
        waiting, active, delayed, cron, dead, processed, failed, workers, types = await self.caller.pipeline(
            [
                ("LLEN", keys.waiting()),
                ("SCARD", keys.active()),
                ("ZCARD", keys.delayed()),
                ("ZCARD", keys.cron()),
                ("LLEN", keys.dead_letters()),
                ("GET", keys.processed()),
                ("GET", keys.failed()),
                ("SMEMBERS", keys.workers()),
                ("SMEMBERS", keys.types()),
            ]
        )
        names = sorted(_id(raw) for raw in workers)
        kinds = sorted(_id(raw) for raw in types)
        answers: list[Any] = await self.caller.pipeline(
            [("EXISTS", keys.heartbeat(name)) for name in names]
            + [("GET", keys.concurrent(kind)) for kind in kinds]
        )
        return Namespace(
            waiting,
            active,
            delayed,
            cron,
            dead,
            {name: alive == 1 for name, alive in zip(names, answers, strict=False)},
            {kind: int(count or 0) for kind, count in zip(kinds, answers[len(names) :], strict=True)},
            int(processed or 0),
            int(failed or 0),
        )


def _id(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")
