"""Workers: their abilities, what each runs now, and the jobs that none of them can do."""

from __future__ import annotations

from typing import Any

import msgspec

from oxcart.broker.workers import WorkerRecord
from oxcart.http.web.dashboard import View, page
from oxcart.model.errors import NotSupported
from oxcart.model.job import Job

#: Queues whose running jobs are read, and how many of each.
MOST_QUEUES, RUNNING = 20, 100
#: Jobs that the page lists for one worker.
SHOWN = 8


class Member(msgspec.Struct, kw_only=True):
    """A worker with what it runs."""

    record: WorkerRecord
    jobs: list[tuple[str, Job]] = msgspec.field(default_factory=list)


class WorkersPage(View):
    """Workers."""

    title = "Workers"
    template = "workers.html"
    parts = ("workers",)
    every = 3.0
    nav = "workers"
    crews_age = 2.0

    async def load(self) -> dict[str, Any]:
        """Reads the workers of all queues, and the running jobs."""
        tracks = await self.tracks()
        members: dict[str, Member] = {}
        peers: list[tuple[str, str]] = []
        for track in tracks.values():
            for record in track.crew.workers:
                members.setdefault(record.id, Member(record=record))
            peers += ((name or "unnamed", track.name) for name in track.crew.peers)
        names = {member.record.name: member for member in members.values()} | dict(members)
        busy = sorted((t for t in tracks.values() if t.count("active")), key=lambda t: -t.count("active"))
        others: list[tuple[str, Job]] = []
        for track in busy[:MOST_QUEUES]:
            for job in await self.service.queue(track.name).jobs.list("active", limit=RUNNING):
                owner = names.get(job.worker_id or "")
                (owner.jobs if owner is not None else others).append((track.name, job))
        lost: list[tuple[str, str, int]] = []
        for track in tracks.values():
            if track.sample.has_lanes:
                try:
                    counted = await self.service.queue(track.name).workers.unroutable()
                except NotSupported:
                    continue
                lost += ((track.name, target, count) for target, count in counted.items())
        at = next(iter(tracks.values())).sample.at_ms if tracks else 0
        return {
            "members": sorted(members.values(), key=lambda member: member.record.name),
            "peers": peers,
            "others": others[:SHOWN],
            "more_others": max(0, len(others) - SHOWN),
            "lost": lost,
            "shown": SHOWN,
            "now": at,
        }


ROUTES = page("/workers", WorkersPage)
