"""Reads of a Bridge job type: jobs, states and counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from oxcart.broker.bridge import records
from oxcart.broker.bridge.census import SHORT, Census, Place
from oxcart.broker.bridge.jobs import decode_job
from oxcart.broker.bridge.keys import BridgeKeys
from oxcart.broker.bridge.workers import NamespaceWorkers
from oxcart.broker.port import Ended
from oxcart.broker.replies import pairs, text, texts
from oxcart.broker.sealing import Sealer
from oxcart.broker.served import Connected
from oxcart.broker.short_ids import scan_ids
from oxcart.model.job import Job


class Reading(Connected):
    """The part of a broker that only reads."""

    keys: BridgeKeys
    sealer: Sealer | None
    census: Census

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
            run = pairs(flat)
            depends = run.pop(b"depends", None)
            job = decode_job(
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
        """Returns the stored end of a job."""
        raw, status, result = await self.caller.command(
            "MGET", self.keys.data(job_id), self.keys.status(job_id), self.keys.result(job_id)
        )
        value = records.value_of(result) if result else None
        # A client that stores no status still leaves a result; another leaves one with every failure.
        place = _text(status)
        finished = place in records.OVER or value is not None or (bool(result) and place not in records.LIVE)
        return Ended(raw is not None, finished, value, result is not None)

    async def states(self, job_ids: Sequence[str]) -> list[str]:
        """Returns the states of jobs, in the words that both protocols share."""
        commands: list[tuple[str, str] | tuple[str, str, str]] = []
        for job_id in job_ids:
            commands += [("GET", self.keys.status(job_id)), ("ZSCORE", self.keys.pending(), job_id)]
        answers = iter(await self.caller.pipeline(commands))
        return [
            "waiting-children" if pending is not None else records.PLACES.get(_text(status) or "", "unknown")
            for status, pending in zip(answers, answers, strict=True)
        ]

    async def counts_over_lanes(self) -> dict[str, int]:
        """Returns the same as ``counts``: a job with a target belongs to its type."""
        return await self.counts()

    async def counts(self) -> dict[str, int]:
        """Counts the jobs of the type in each state, including those of other clients.

        Jobs that other clients have completed count once a worker of ours has recorded them.
        """
        completed, cancelled = await self.caller.pipeline(
            [("ZCARD", self.keys.ended("completed")), ("ZCARD", self.keys.ended("cancelled"))]
        )
        pending = await self.census.of_type("pending", self.queue)
        return {
            "wait": await self._waiting_count(set(pending)),
            "paused": 0,
            "active": len(await self._active()),
            "prioritized": 0,
            "delayed": len(await self.census.of_type("delayed", self.queue)),
            "waiting-children": len(pending),
            "completed": completed,
            "failed": await self._dead_count() + cancelled,
        }

    async def counts_at_once(self) -> dict[str, int]:
        """As ``counts``: the specification's lists cannot be read at one moment."""
        return await self.counts()

    async def _waiting_count(self, pending: set[str]) -> int:
        if await self.census.is_indexed():
            return sum(await self.caller.pipeline([("ZCARD", lane) for lane in await self._lanes()]))
        return len(set(await self.census.of_type("waiting", self.queue)) - pending)

    async def _dead_count(self) -> int:
        """Counts dead letters of the type: by our records, if these have as many of all types as the list."""
        types = texts(await self.caller.command("SMEMBERS", self.keys.types()))
        listed, *noted = await self.caller.pipeline(
            [
                ("LLEN", self.keys.dead_letters()),
                *(("ZCARD", self.keys.ended("failed", one)) for one in types),
            ]
        )
        if listed == sum(noted):
            return int(dict(zip(types, noted, strict=True)).get(self.queue, 0))
        return len(await self.census.of_type("dead", self.queue))

    async def _active(self) -> list[str]:
        held, all_held, active = await self.caller.pipeline(
            [
                ("SMEMBERS", self.keys.held_of(self.queue)),
                ("HLEN", self.keys.held()),
                ("SCARD", self.keys.active()),
            ]
        )
        ours = texts(held)
        if active == all_held:
            return ours
        return list(dict.fromkeys([*ours, *await self.census.of_type("active", self.queue)]))

    async def page(self, state: str, first: int, last: int, *, oldest: bool = False) -> list[Job]:
        """Reads a range of jobs of a state; ids without a job are left out."""
        if state == "wait" and await self.census.is_indexed():
            ids = await self._merged(await self._lanes(), last + 1, oldest)
        elif state == "completed":
            ids = await self._merged([self.keys.ended("completed")], last + 1, oldest)
        else:
            ids = await self.ids(state)
            if not oldest:
                ids.reverse()
        return await self.read_jobs(ids[first : last + 1])

    async def ids_beginning(self, start: str, most: int) -> list[str]:
        """Returns the ids of the type's jobs that begin with a text."""
        pattern = self.keys.jobs_beginning(start)
        ids = await scan_ids(self.caller, pattern, "string", self.keys.id_of, most)
        kinds = await self.census.kinds([job_id.encode() for job_id in ids])
        return [
            job_id
            for job_id, kind in zip(ids, kinds, strict=True)
            if kind is not None and kind.type in (self.queue, "")
        ]

    async def read_jobs(self, ids: Sequence[str]) -> list[Job]:
        """Reads jobs for a list, without missing ones; a value that does not open stays sealed."""
        return [job for job in await self.look(ids, lenient=True) if job is not None]

    async def ids(self, state: str) -> list[str]:
        """Returns the ids of all jobs of the type in a wire state, oldest first."""
        if state == "wait":
            return await self._waiting_ids()
        if state == "active":
            return await self._active()
        if state == "delayed":
            return await self.census.of_type("delayed", self.queue)
        if state == "waiting-children":
            return await self.census.of_type("pending", self.queue)
        if state == "completed":
            return texts(await self.caller.command("ZRANGE", self.keys.ended(state), 0, -1))
        return await self._failed() if state == "failed" else []

    async def _lanes(self) -> list[str]:
        lanes = await self.caller.command("SMEMBERS", self.keys.lanes())
        return [self.keys.lane(text(lane)) for lane in lanes]

    async def _waiting_ids(self) -> list[str]:
        # Jobs in the index come in the order in which our workers claim them; the others follow.
        listed = await self.census.of_type("waiting", self.queue)
        there = set(listed)
        there.difference_update(await self.census.of_type("pending", self.queue))
        most = len(listed) + 10 * SHORT
        ids = [one for one in await self._merged(await self._lanes(), most, True) if one in there]
        there.difference_update(ids)
        return ids + [one for one in listed if one in there]

    async def _failed(self) -> list[str]:
        """Returns dead letters and cancelled jobs of the type, by the time of their end."""
        dead = await self.census.of_type("dead", self.queue)
        scores = await self.caller.command("ZMSCORE", self.keys.ended("failed"), *dead) if dead else []
        ends: list[tuple[float, str]] = []
        at = math.inf
        for one, score in zip(dead, scores, strict=True):  # the newest is at the head of the list
            at = min(at, float(score)) if score is not None else at
            ends.append((at, one))
        flat = await self.caller.command("ZRANGE", self.keys.ended("cancelled"), 0, -1, "REV", "WITHSCORES")
        ends += zip(map(float, flat[1::2]), map(text, flat[::2]), strict=True)
        ends.sort(key=lambda end: -end[0])
        return list(dict.fromkeys(one for _, one in ends))[::-1]

    async def _merged(self, keys: Sequence[str], most: int, oldest: bool) -> list[str]:
        """Returns the first members of some sorted sets together, or the last ones first."""
        scored: list[tuple[float, bytes]] = []
        if most > 0:
            way = () if oldest else ("REV",)
            for flat in await self.caller.pipeline(
                [("ZRANGE", key, 0, most - 1, *way, "WITHSCORES") for key in keys]
            ):
                scored += zip(map(float, flat[1::2]), flat[::2], strict=True)
        return [text(raw) for _, raw in sorted(scored, reverse=not oldest)[:most]]

    @property
    def registry(self) -> NamespaceWorkers:
        """The registry of the namespace's workers."""
        return NamespaceWorkers(self)

    async def unroutable(self) -> dict[str, int]:
        """Returns how many jobs of the type wait whose targets no living worker fits, by the targets."""
        return await self.registry.unroutable()

    async def unroutable_page(self, state: str, first: int, last: int, *, oldest: bool = False) -> list[Job]:
        """Reads a range of the jobs that no living worker can take, waiting ones or delayed ones."""
        targets = await self.unroutable()
        place: Place | None = {"wait": "waiting", "delayed": "delayed"}.get(state)  # type: ignore[assignment]
        if not targets or place is None:
            return []
        ids = await self.census.of_type(place, self.queue, targets)
        if not oldest:
            ids.reverse()
        return await self.read_jobs(ids[first : last + 1])


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")
