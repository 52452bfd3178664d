"""The page of one queue: charts of the last minutes, its states, lanes, priorities and latest changes."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from oxcart.drawing.sparks import meter, spark
from oxcart.http.web.dashboard import View, page
from oxcart.http.web.groups import groups_of
from oxcart.http.web.overview import row_of, shares_of
from oxcart.model.search import changed_ms

#: Jobs that the page lists as the latest.
LATEST = 12
#: Partitions that the page lists.
PARTITIONS = 64


class QueuePage(View):
    """A queue."""

    template = "queue.html"
    parts = ("queue_head", "queue_body")
    nav = "queues"

    def read_address(self) -> None:
        """Reads which queue."""
        self._queue = self.service.queue(self.query.get("name", ""))
        self.title = self._queue.name

    async def load(self) -> dict[str, Any]:
        """Reads the queue."""
        queue = self._queue
        track = (await self.tracks())[queue.name]
        lanes = await queue.lanes.counts() if queue.capabilities.can("lanes") else {}
        latest = [
            job
            for place in ("active", "failed", "completed")
            if track.count(place)
            for job in await queue._core.broker.page(place, 0, LATEST - 1)
        ]
        latest.sort(key=changed_ms, reverse=True)
        row = row_of(track)
        return {
            "queue": row,
            "version": track.sample.version,
            "share_failed": track.share_failed(),
            "charts": [
                (
                    "Completed per second",
                    f"{row['rate']:.1f}",
                    Markup(spark(track.line("completed"), "rate big", "completed per second")),
                ),
                (
                    "Failed per second",
                    f"{row['failing']:.1f}",
                    Markup(spark(track.line("failed"), "bad big", "failed per second")),
                ),
                (
                    "Scheduled",
                    f"{row['ready']:,}",
                    Markup(spark(track.line("backlog"), "backlog big", "ready jobs")),
                ),
            ],
            "waits": Markup(spark(track.line("waits"), "wait big", "median wait before a start")),
            "runs": Markup(spark(track.line("runs"), "run big", "median time of a run")),
            "shares": Markup(meter(shares_of(track), "jobs by state")),
            "lanes": [
                (
                    lane,
                    counts["wait"] + counts["paused"] + counts["prioritized"],
                    counts["active"],
                    counts["delayed"],
                )
                for lane, counts in sorted(lanes.items())
            ],
            "groups": await groups_of(queue, track.sample.grouped),
            "partitions": [
                (number, counts["wait"] + counts["paused"] + counts["prioritized"], counts)
                for number, counts in enumerate(track.sample.partitions[:PARTITIONS])
            ],
            "crew": track.crew,
            "latest": latest[:LATEST],
        }


ROUTES = page("/queue", QueuePage)
