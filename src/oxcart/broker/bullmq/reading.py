"""Reads of a BullMQ queue: jobs, their states and their lists."""

from __future__ import annotations

from collections.abc import Sequence

from oxcart.broker.bullmq import codec
from oxcart.broker.bullmq.keys import Keys
from oxcart.broker.bullmq.lanes import QueueLanes
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.port import Ended
from oxcart.broker.replies import pairs, text
from oxcart.broker.sealing import Sealer
from oxcart.broker.served import Connected
from oxcart.broker.short_ids import scan_ids
from oxcart.model.job import Job

#: Ids that one call of a page lists at most; a longer page is read in parts.
PAGE = 1000
#: Jobs that one call of it reads at most.
PAGE_PART = 100
#: The answer of scripts that only read for a job that may be in a lane of the queue.
ELSEWHERE = b"elsewhere"


class Reading(Connected):
    """The part of a broker that only reads."""

    keys: Keys
    lanes: QueueLanes
    sealer: Sealer | None
    _meta: str

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.keys.queue

    async def get(self, job_ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        """Reads jobs.

        Raises:
            DecryptionError: The queue has keys, and a value does not open with them.
        """
        found = zip(job_ids, await self.records(job_ids), strict=True)
        return [self._job(job_id, fields, lenient=lenient) for job_id, fields in found]

    async def records(self, job_ids: Sequence[str]) -> list[dict[bytes, bytes]]:
        """Reads jobs as they are stored; a missing job has no fields."""
        answers = await self.caller.pipeline([("HGETALL", self.keys.job(job_id)) for job_id in job_ids])
        return [pairs(flat) for flat in answers]

    async def ended(self, job_id: str) -> Ended:
        """Returns the stored end of a job."""
        finished, value, added, starts = await self.caller.command(
            "HMGET", self.keys.job(job_id), "finishedOn", "returnvalue", "timestamp", "ats"
        )
        known = added is not None or finished is not None
        return Ended(known, finished is not None, value, starts is not None)

    async def look(self, job_ids: Sequence[str], *, lenient: bool = False) -> list[Job | None]:
        """Reads jobs with their formal states."""
        found: list[Job | None] = []
        lost: list[int] = []
        for start in range(0, len(job_ids), PAGE_PART):
            part = job_ids[start : start + PAGE_PART]
            answers = await self.caller.again(load("look"), self._meta, *part)
            for job_id, place, flat in zip(part, answers[::2], answers[1::2], strict=True):
                found.append(self._job(job_id, pairs(flat), place.decode(), lenient=lenient))
                lost += [len(found) - 1] if place == ELSEWHERE else []
        for lane, places in (await self.lanes.holding(job_ids, lost)).items():
            there = await lane.look([job_ids[i] for i in places], lenient=lenient)
            for place, job in zip(places, there, strict=True):
                found[place] = job
        return found

    async def states(self, job_ids: Sequence[str]) -> list[str]:
        """Returns the wire states of jobs."""
        answer = await self.caller.again(load("job_state"), self._meta, *job_ids)
        found = ["unknown" if state == ELSEWHERE else state.decode() for state in answer]
        lost = [place for place, state in enumerate(answer) if state == ELSEWHERE]
        for lane, places in (await self.lanes.holding(job_ids, lost)).items():
            for place, state in zip(places, await lane.states([job_ids[i] for i in places]), strict=True):
                found[place] = state
        return found

    async def page(self, state: str, first: int, last: int, *, oldest: bool = False) -> list[Job]:
        """Reads a range of jobs of a state; ids without a job are left out."""
        found = await self.page_records(state, first, last, oldest=oldest)
        jobs = (self._job(job_id, fields, state, lenient=True) for job_id, fields in found)
        return [job for job in jobs if job is not None]

    async def page_records(
        self, state: str, first: int, last: int, *, oldest: bool = False, pages: int = 1
    ) -> list[tuple[str, dict[bytes, bytes]]]:
        """As ``page``, with the jobs as they are stored.

        Args:
            state: The wire's name of the state.
            first: The first index of the page, from 0.
            last: The last one.
            oldest: Whether the oldest comes first.
            pages: How many pages to read at most, if ids without a job leave the page too short.
        """
        found: list[tuple[str, dict[bytes, bytes]]] = []
        order, most = "1" if oldest else "", last - first + 1
        end_of_all, step = last + most * (pages - 1), PAGE if pages == 1 else min(PAGE, most)
        for start in range(first, end_of_all + 1, step):
            end = min(end_of_all, start + step - 1)
            flat = await self.caller.again(load("page"), self._meta, state, start, end, order)
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            while later := [job_id for job_id, read in fields.items() if read == 0]:
                more = await self.caller.again(load("page"), self._meta, "ids", *later[:PAGE_PART])
                fields.update(zip(more[::2], more[1::2], strict=True))
            found += ((text(job_id), pairs(fields[job_id])) for job_id in flat[::2] if fields[job_id])
            if len(flat) // 2 <= end - start or len(found) >= most:
                break
        return found[:most]

    async def ids_beginning(self, start: str, most: int) -> list[str]:
        """Returns the ids of jobs of the queue and its lanes that begin with a text."""
        pattern = self.keys.jobs_beginning(start)
        ids = await scan_ids(self.caller, pattern, "hash", self.keys.id_of, most)
        # Keys beside a job's own, such as its processed children, look like ids as well.
        states = await self.states(ids) if ids else []
        return [job_id for job_id, state in zip(ids, states, strict=True) if state != "unknown"]

    def _job(
        self, job_id: str, fields: dict[bytes, bytes], place: str | None = None, *, lenient: bool = False
    ) -> Job | None:
        if not fields:
            return None
        if self.sealer is not None:
            fields = codec.open_fields(self.sealer, job_id, fields, lenient=lenient)
        return codec.decode_job(self.queue, job_id, fields, place)
