"""History: charts from the tables of a lake, where the server has one, without Spark.

The page has two faces: what happened, and how the service stands: objectives, anomalies, capacity, costs and
versions.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from oxcart.drawing.charts import HIGH, WIDE, Axis, Row, charts_of, draw, title_of
from oxcart.drawing.sparks import spark
from oxcart.history import service as whole
from oxcart.history.questions import failure_causes, figures, slowest
from oxcart.history.reader import LakeReader
from oxcart.http.errors import not_found
from oxcart.http.web.dashboard import View, page
from oxcart.spark.lake.versions import Lake

_HOUR = 3_600_000
#: The spans that the page offers: how long each is, and the window of its figures with its width, in ms.
SPANS = {
    "6h": (6 * _HOUR, "minute", 60_000),
    "24h": (24 * _HOUR, "hour", _HOUR),
    "7d": (168 * _HOUR, "hour", _HOUR),
    "30d": (720 * _HOUR, "day", 24 * _HOUR),
}
#: The faces of the page.
FACES = ("charts", "service")
#: Hours of the line of an objective, and rows of each table about the service.
LINE, ROWS = 168, 15
#: Queues with charts, causes and job types that the page shows.
CHARTED, CAUSES, TYPES = 6, 12, 12
#: Queues whose causes of failures are asked for.
MOST_QUEUES = 20


class HistoryPage(View):
    """History of the queues."""

    title = "History"
    template = "history.html"
    nav = "history"

    def read_address(self) -> None:
        """Reads the queue and the span."""
        if self.dashboard.lake is None:
            raise not_found("a lake; start the server with --lake")
        self._queue = self.query.get("queue", "")
        if self._queue:
            self.service.queue(self._queue)
        self._span = self.query.get("since", "24h")
        if self._span not in SPANS:
            self._span = "24h"
        self._face = self.query.get("view", "charts")
        if self._face not in FACES:
            self._face = "charts"

    async def load(self) -> dict[str, Any]:
        """Asks the lake, in a thread; a few at once, because each question uses all cores."""
        async with self.service.lake_turns:
            read = self._read_service if self._face == "service" else self._read_charts
            found = await asyncio.to_thread(read, *self._since())
        return {
            "face": self._face,
            "queue": self._queue,
            "span": self._span,
            "spans": list(SPANS),
            **found,
        }

    def _since(self) -> tuple[int, int, str]:
        """Returns the present, the beginning of the span, and its day."""
        now = int(time.time() * 1000)
        since = now - SPANS[self._span][0]
        return now, since, datetime.fromtimestamp(since / 1000, UTC).strftime("%Y-%m-%d")

    def _read_service(self, now: int, since: int, day: str) -> dict[str, Any]:
        queue = self._queue or None
        version = Lake(self.dashboard.lake or "").head()
        with whole.objectives_reader(version, LINE) as reader:
            asked = {
                "objectives": whole.objectives(reader, queue),
                "hours": whole.objective_hours(reader, LINE, queue),
            }
        with whole.anomalies_reader(version, day) as reader:
            asked["anomalies"] = whole.anomalies(reader, day, queue)
        with whole.since_reader(version, day) as reader:
            asked["capacity"] = whole.capacity(reader, day, queue)
            asked["costs"] = whole.costs(reader, day, queue)
        with whole.changes_reader(version, day) as reader:
            asked["changes"] = whole.changes(reader, day, queue)
        # A caller sees nothing of queues on which it has no role.
        known = self.service.queues
        found = {name: [row for row in rows if row["queue"] in known] for name, rows in asked.items()}
        hours = found.pop("hours")
        objectives = [{**row, **_lines(row, hours)} for row in found.pop("objectives")]
        return {"version": version.number, "objectives": objectives} | {
            name: rows[:ROWS] for name, rows in found.items()
        }

    def _read_charts(self, now: int, since: int, day: str) -> dict[str, Any]:
        _, window, width = SPANS[self._span]
        known = self.service.queues
        with LakeReader(self.dashboard.lake or "", since_day=day) as reader:
            rows = figures(reader, window, since, self._queue or None)
            # Queue by queue: a caller sees nothing of queues on which it has no role.
            names = [self._queue] if self._queue else sorted(known)[:MOST_QUEUES]
            causes = [cause for name in names for cause in failure_causes(reader, since, name)]
            types = slowest(reader, since, self._queue or None).names
            version = reader.version.number
        by_queue: dict[str, list[Row]] = {}
        for row in rows:
            if row["queue"] in known:
                by_queue.setdefault(row["queue"], []).append(row)
        first = min((row["start_ms"] for rows in by_queue.values() for row in rows), default=since)
        axis = Axis(max(first, since - since % width), now - now % width + width, width)
        busiest = sorted(by_queue, key=lambda name: -sum(row["arrivals"] or 0 for row in by_queue[name]))
        return {
            "charts": [(name, _figures(name, by_queue[name], axis)) for name in busiest[:CHARTED]],
            "left_out": busiest[CHARTED:],
            "causes": sorted(causes, key=lambda cause: -cause.count)[:CAUSES],
            "types": [row for row in types if row["queue"] in known][:TYPES],
            "version": version,
        }


def _lines(objective: Row, hours: list[Row]) -> dict[str, Any]:
    """Returns an objective's budget and burn over the last days, as lines."""
    own = [row for row in hours if row["objective"] == objective["objective"]]
    name = objective["objective"]
    budget = [None if row["budget_left"] is None else max(0.0, row["budget_left"]) for row in own]
    return {
        "budget_line": Markup(spark(budget, "rate big", f"{name}: budget left", top=1.0)),
        "burn_line": Markup(spark([row["burn_1h"] for row in own], "bad big", f"{name}: burn of an hour")),
        "is_spent": objective["budget_left"] is not None and objective["budget_left"] <= 0,
        "is_burning": any((objective[f"burn_{span}"] or 0) >= 1 for span in ("1h", "6h")),
    }


def _figures(queue: str, rows: list[Row], axis: Axis) -> list[tuple[str, Markup, list[tuple[str, str]]]]:
    made = []
    for chart in charts_of(rows):
        title = title_of(chart, axis.width)
        text = Markup("<svg class='chart' viewBox='0 0 {} {}' role='img' aria-label='{}'>{}</svg>").format(
            WIDE, HIGH, f"{queue}: {title}", Markup(draw(rows, chart, axis))
        )
        made.append((title, text, [(line.colour, str(escape(line.label))) for line in chart.lines]))
    return made


ROUTES = page("/history", HistoryPage)
