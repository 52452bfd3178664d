"""History: charts from the tables of a lake, where the server has one, without Spark."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from oxcart.drawing.charts import HIGH, WIDE, Axis, Row, charts_of, draw, title_of
from oxcart.history.questions import failure_causes, figures, slowest
from oxcart.history.reader import LakeReader
from oxcart.http.errors import not_found
from oxcart.http.web.dashboard import View, page

_HOUR = 3_600_000
#: The spans that the page offers: how long each is, and the window of its figures with its width, in ms.
SPANS = {
    "6h": (6 * _HOUR, "minute", 60_000),
    "24h": (24 * _HOUR, "hour", _HOUR),
    "7d": (168 * _HOUR, "hour", _HOUR),
    "30d": (720 * _HOUR, "day", 24 * _HOUR),
}
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

    async def load(self) -> dict[str, Any]:
        """Asks the lake, in a thread."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> dict[str, Any]:
        length, window, width = SPANS[self._span]
        now = int(time.time() * 1000)
        since = now - length
        day = datetime.fromtimestamp(since / 1000, UTC).strftime("%Y-%m-%d")
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
            "queue": self._queue,
            "span": self._span,
            "spans": list(SPANS),
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
