"""The streams and job records of BullMQ's queues: events, records of attempts beside them, and job hashes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.codec import attempts_made, state_of
from oxcart.broker.bullmq.keys import Keys
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.discovery import find_queues
from oxcart.broker.export import ATTEMPTS, DEFAULT_KEPT, EVENTS, Export, JobIds, Pick, StoredJob
from oxcart.broker.replies import text
from oxcart.broker.stored import count_of, text_of
from oxcart.model import payload
from oxcart.model.errors import PayloadError
from oxcart.model.target import split_lane

if TYPE_CHECKING:
    from oxcart.broker.link import Argument

#: Where jobs are, in the direction in which they move, and the name of the state.
_PLACES = {
    "waiting-children": "waiting-children",
    "delayed": "delayed",
    "wait": "waiting",
    "paused": "waiting",
    "prioritized": "prioritized",
    "active": "active",
    "failed": "failed",
    "completed": "completed",
}
_LISTS = ("wait", "paused", "active")
_ENDS = ("failed", "completed")
#: Ids per round trip.
_PAGE = 10_000


class BullMQExport(Export):
    """The queues under a prefix; lanes are queues of their own."""

    suffixes = (EVENTS, ATTEMPTS)

    def _keys(self, queue: str) -> Keys:
        return Keys(queue, self._prefix, self._server.is_cluster)

    def _slot(self, queue: str) -> int:
        return self._keys(queue).slot()

    def _stream(self, queue: str, suffix: str) -> str:
        return self._keys(queue).key(suffix)

    async def _script(self, verb: str, queue: str, *arguments: Argument) -> Any:
        return await self._at(queue).again(load(verb), self._keys(queue).meta(), *arguments)

    async def _stride(self, queue: str, suffix: str, *arguments: Argument) -> Any:
        return await self._script("stride", queue, suffix, *arguments)

    async def queues(self, names: Sequence[str], pick: Pick | None) -> list[str]:
        """Returns these queues with their lanes, or those picked of all under the prefix."""
        if pick is not None:
            return pick(await find_queues(self._server, self._prefix, self._reconnect, lanes=True))
        found = set(names)
        for name in names:
            lanes = await self._at(name).command("ZRANGE", self._keys(name).lanes(), 0, -1)
            found.update(f"{name}@{lane.decode('utf-8', 'replace')}" for lane in lanes)
        return sorted(found)

    async def readers(self, queue: str) -> dict[str, int]:
        """Returns the attached readers of a queue."""
        flat = await self._at(queue).command(
            "ZRANGE", self._keys(queue).key("ox:readers"), 0, -1, "WITHSCORES"
        )
        return {flat[i].decode(): int(float(flat[i + 1])) for i in range(0, len(flat), 2)}

    async def kept(self, queue: str) -> int:
        """Returns how many events a queue keeps."""
        set_ = await self._at(queue).command("HGET", self._keys(queue).meta(), "opts.maxLenEvents")
        return int(set_ or DEFAULT_KEPT)

    def broker(self, queue: str) -> BullMQBroker:
        """Returns the broker of a queue."""
        return BullMQBroker(self._server, queue, prefix=self._prefix, caller=self._at(queue))

    async def job_ids(
        self,
        queues: Sequence[str],
        states: Collection[str] | None = None,
        ended_from: int | None = None,
        ended_to: int | None = None,
    ) -> list[JobIds]:
        """Lists ids by queue and state, in the direction in which jobs move.

        So a job that moves meanwhile is seen at least once. An id seen twice counts in the later state.
        """
        listed = []
        for queue in queues:
            found: dict[str, str] = {}
            timed = ended_from is not None or ended_to is not None
            for place, state in _PLACES.items():
                if (states is not None and state not in states) or (timed and place not in _ENDS):
                    continue
                async for raw in self._ids(queue, place, ended_from, ended_to):
                    job_id = text(raw)
                    if not job_id.startswith("0:"):  # a wake-up token of ancient peers
                        found[job_id] = state
            for state in dict.fromkeys(_PLACES.values()):
                if ids := [job_id for job_id, where in found.items() if where == state]:
                    listed.append(JobIds(queue, state, ids))
        return listed

    async def _ids(
        self, queue: str, place: str, ended_from: int | None, ended_to: int | None
    ) -> AsyncIterator[bytes]:
        caller, key = self._at(queue), self._keys(queue).key(place)
        first = 0
        while True:
            if place in _LISTS:
                page = await caller.command("LRANGE", key, first, first + _PAGE - 1)
            elif ended_from is not None or ended_to is not None:
                low = "-inf" if ended_from is None else ended_from
                high = "+inf" if ended_to is None else ended_to
                page = await caller.command("ZRANGEBYSCORE", key, low, high, "LIMIT", first, _PAGE)
            else:
                page = await caller.command("ZRANGE", key, first, first + _PAGE - 1)
            for raw in page:
                yield raw
            if len(page) < _PAGE:
                return
            first += _PAGE

    async def jobs(self, queue: str, state: str, ids: Sequence[str]) -> list[StoredJob]:
        """Reads jobs of a queue and state."""
        keys = self._keys(queue)
        flats = await self._at(queue).pipeline([("HGETALL", keys.job(job_id)) for job_id in ids])
        return [
            stored_job(*split_lane(queue), job_id, state, dict(zip(flat[::2], flat[1::2], strict=True)))
            for job_id, flat in zip(ids, flats, strict=True)
            if flat
        ]


def stored_job(
    queue: str, lane: str | None, job_id: str, state: str | None, fields: Mapping[bytes, bytes]
) -> StoredJob:
    """Returns a job from its hash."""
    get = fields.get
    try:
        stack = payload.read(get(b"stacktrace") or b"[]")
    except PayloadError:
        stack = []
    return StoredJob(
        id=job_id,
        queue=queue,
        lane=lane,
        state=state,
        formal_state=None if state is None else state_of(fields, state),
        name=text_of(get(b"name")),
        data=text_of(get(b"data")),
        options=text_of(get(b"opts")),
        result=text_of(get(b"returnvalue")),
        reason=text_of(get(b"failedReason")),
        stacktrace=[str(frame) for frame in stack] if isinstance(stack, list) else [],
        created_ms=_moment(get(b"timestamp")),
        started_ms=_moment(get(b"processedOn")),
        ended_ms=_moment(get(b"finishedOn")),
        delay_ms=count_of(get(b"delay")),
        priority=count_of(get(b"priority")),
        attempts_made=attempts_made(fields),
        attempts_started=count_of(get(b"ats")),
        stalls=count_of(get(b"stc")),
        worker=text_of(get(b"pb")),
        progress=text_of(get(b"progress")),
        category=text_of(get(b"ox:category")),
        code=text_of(get(b"ox:code")),
        correlation_id=text_of(get(b"ox:corr")),
        tags=text_of(get(b"ox:tags")),
    )


def _moment(raw: bytes | None) -> int | None:
    if raw is None:
        return None
    number = count_of(raw)
    return number if 0 <= number < 2**53 else None
