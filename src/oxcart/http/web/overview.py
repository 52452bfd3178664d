"""The overview: all queues with their rates, latencies and backlogs, failing types and workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from oxcart.drawing.sparks import meter, spark
from oxcart.http.web.dashboard import View, page
from oxcart.http.web.pulse import Track

#: Failing types that the overview shows.
FAILING = 6

#: The lists of the wire in a bar of a queue's jobs, with the class of each.
_SHARES = (
    ("s-scheduled", ("wait", "paused", "prioritized")),
    ("s-running", ("active",)),
    ("s-delayed", ("delayed",)),
    ("s-pending", ("waiting-children",)),
    ("s-completed", ("completed",)),
    ("s-failed", ("failed",)),
)


def row_of(track: Track) -> dict[str, Any]:
    """Returns a queue as a row of the overview."""
    rate, failing = track.rate(), track.rate("failed")
    return {
        "name": track.name,
        "protocol": track.protocol,
        "paused": track.sample.paused,
        "ready": track.ready,
        "grouped": track.sample.grouped,
        "partitions": len(track.sample.partitions),
        "running": track.count("active"),
        "delayed": track.count("delayed"),
        "pending": track.count("waiting-children"),
        "completed": track.count("completed"),
        "failed": track.count("failed"),
        "rate": rate,
        "failing": failing,
        "wait": track.median("waits"),
        "run": track.median("runs"),
        "oldest": track.oldest_s,
        "workers": len(track.crew.workers) + len(track.crew.peers),
        "rate_line": Markup(spark(track.line("completed"), "rate", f"completed per second, now {rate:.1f}")),
        "wait_line": Markup(spark(track.line("waits"), "wait", "wait before a start, last five minutes")),
        "backlog_line": Markup(spark(track.line("backlog"), "backlog", f"backlog, now {track.ready}")),
        "shares": Markup(meter(shares_of(track), "jobs by state")),
    }


def shares_of(track: Track) -> list[tuple[str, float]]:
    """Returns the jobs of a queue by state, for a meter."""
    counts = {kind: sum(track.count(place) for place in places) for kind, places in _SHARES}
    return [(kind, float(track.ready if kind == "s-scheduled" else count)) for kind, count in counts.items()]


def totals_of(tracks: Sequence[Track]) -> dict[str, Any]:
    """Returns the sums over all queues."""
    lines = {
        kind: [_sum(points) for points in zip(*(track.line(kind) for track in tracks), strict=True)]
        for kind in ("completed", "failed", "backlog")
    }
    oldest = [track.oldest_s for track in tracks if track.oldest_s is not None]
    workers = {worker.id: worker for track in tracks for worker in track.crew.workers}
    peers = sum(len(track.crew.peers) for track in tracks)
    running = sum(track.count("active") for track in tracks)
    slots = sum(worker.concurrency for worker in workers.values())
    return {
        "rate": sum(track.rate() for track in tracks),
        "failing": sum(track.rate("failed") for track in tracks),
        "ready": sum(track.ready for track in tracks),
        "delayed": sum(track.count("delayed") for track in tracks),
        "running": running,
        "failed": sum(track.count("failed") for track in tracks),
        "completed": sum(track.count("completed") for track in tracks),
        "oldest": max(oldest, default=None),
        "workers": len(workers) + peers,
        "peers": peers,
        "slots": slots,
        "busy": min(1.0, running / slots) if slots else 0.0,
        "rate_line": Markup(spark(lines["completed"], "rate big", "completed per second")),
        "failed_line": Markup(spark(lines["failed"], "bad big", "failed per second")),
        "backlog_line": Markup(spark(lines["backlog"], "backlog big", "ready jobs")),
        "busy_bar": Markup(
            meter([("s-running", running), ("s-none", max(0, slots - running))], "busy slots")
        ),
    }


def _sum(points: Sequence[float | None]) -> float | None:
    known = [point for point in points if point is not None]
    return sum(known) if known else None


class Overview(View):
    """The first page."""

    title = "Overview"
    template = "overview.html"
    parts = ("totals", "queues", "failing")
    every = 2.0
    nav = "overview"

    async def load(self) -> dict[str, Any]:
        """Reads all queues."""
        tracks = await self.tracks()
        rows = [row_of(track) for track in tracks.values()]
        # What needs eyes comes first: failures, then a backlog, then the rest by name.
        rows.sort(key=lambda row: (-row["failing"], -row["ready"], row["name"]))
        found = list(tracks.values())
        return {
            "totals": totals_of(found),
            "queues": rows,
            "failing_types": [row for row in self.dashboard.pulse.failing if row.queue in tracks][:FAILING],
            "workers_seen": sorted(
                {w.id: w for track in found for w in track.crew.workers}.values(), key=lambda w: w.name
            )[:12],
        }


ROUTES = page("/", Overview)
