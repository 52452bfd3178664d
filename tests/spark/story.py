"""Events written by hand, as rows of bronze."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from oxcart.spark.read.entries import counts_row, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 86_400_000
#: 2026-11-02, midnight.
MIDNIGHT = 1_793_577_600_000


class Story:
    """Builds bronze: every call is an entry, 1 ms after the previous one unless `after` is given.

    Args:
        queue: The queue.
        at_ms: When it begins.
    """

    def __init__(self, queue: str = "q", at_ms: int = MIDNIGHT + 36_000_000) -> None:
        self.queue = queue
        self.now = at_ms
        self.ordinal = 0
        self.life = 1
        self.rows: list[dict[str, Any]] = []
        self.samples: list[tuple[int, dict[str, int]]] = []

    def event(self, event: str | None, job: str | None = None, *, after: int = 1, **fields: Any) -> str:
        """An entry of the event stream; returns its id."""
        self.now += after
        self.ordinal += 1
        entry_id = f"{self.now}-0"
        self._row("events", entry_id, self.ordinal, event=event, job_id=job, **fields)
        return entry_id

    def record(self, entry_id: str, outcome: str, job: str, **actual: Any) -> None:
        """The attempt record that goes with an event."""
        columns = {name: actual.pop(name) for name in ("name", "reason") if name in actual}
        extra = json.dumps({name: str(value) for name, value in actual.items()})
        self._row("ox:attempts", entry_id, None, event=outcome, job_id=job, extra=extra, **columns)

    def lose(self, count: int, cause: str = "trimmed") -> None:
        """A gap."""
        self._row(
            "events", f"{self.now}-0", self.ordinal + 1, kind="gap", lost=count, cause=cause, at_ms=self.now
        )
        self.ordinal += count

    def sample(self, at_ms: int, **counts: int) -> None:
        """A sample of the queue's lengths."""
        self.samples.append((at_ms, counts))

    def run(self, job: str, *ends: tuple[str, dict[str, Any]], name: str = "n", take: int = 10) -> None:
        """A job that is added, claimed and finished at once, one or more times."""
        self.event("added", job, name=name)
        self.event("waiting", job)
        for event, fields in ends:
            self.event("active", job, prev="waiting", after=5)
            self.event(event, job, prev="active", after=take, **fields)

    def bronze(self, spark: SparkSession) -> DataFrame:
        """All of it."""
        import pyarrow as pa

        batches = [rows_of(self.rows)]
        batches += [counts_row(counts, self.queue, at, "0-0") for at, counts in self.samples]
        return spark.createDataFrame(pa.Table.from_batches(batches))

    def _row(self, stream: str, entry_id: str, ordinal: int | None, **fields: Any) -> None:
        at_ms = int(entry_id.partition("-")[0])
        self.rows.append(
            {
                "day": at_ms // DAY_MS,
                "queue": self.queue,
                "stream": stream,
                "kind": "entry",
                "life": self.life,
                "ordinal": ordinal,
                "entry_id": entry_id,
                "at_ms": at_ms,
                **fields,
            }
        )


def the_day() -> Story:
    """A day with every event that a job can have."""
    s = Story()
    s.run("plain", ("completed", {"result": "1"}), name="welcome")

    s.event("added", "retried", name="charge")
    s.event("delayed", "retried", due_ms=s.now + 100)
    s.event("waiting", "retried", prev="delayed", after=100)
    s.event("active", "retried", prev="waiting", after=7)
    s.event("delayed", "retried", after=30, due_ms=s.now + 1000)
    s.event("delayed", "retried", due_ms=s.now + 900)  # its delay was changed meanwhile
    s.event("waiting", "retried", prev="delayed", after=900)
    s.event("active", "retried", prev="waiting", after=3)
    s.event("failed", "retried", prev="active", after=20, reason="card 4711 refused")
    s.event("retries-exhausted", "retried", after=0, attempts_made=2)

    s.event("added", "recorded", name="charge")
    s.event("waiting", "recorded")
    s.event("active", "recorded", prev="waiting", after=2)
    actual = {"name": "charge", "worker": "w1", "starts": 1}
    end = s.event("waiting", "recorded", prev="active", after=50)
    s.record(
        end,
        "retried",
        "recorded",
        reason="card 4712 refused",
        category="temporary",
        code="E1",
        began=s.now - 48,
        ended=s.now - 1,
        stack='Traceback\n  File "/app/pay.py", line 10, in charge\n    x\n',
        **actual,
    )
    s.event("active", "recorded", prev="waiting", after=4)
    end = s.event("completed", "recorded", prev="active", after=40, result="{}")
    s.record(end, "completed", "recorded", began=s.now - 39, ended=s.now - 2, **{**actual, "starts": 2})

    s.event("added", "stalled", name="slow")
    s.event("waiting", "stalled")
    s.event("active", "stalled", prev="waiting")
    s.event("waiting", "stalled", prev="active", after=60_000)
    s.event("stalled", "stalled", after=0)
    s.event("active", "stalled", prev="waiting")
    s.event("completed", "stalled", prev="active", after=10, result="null")

    s.event("added", "snoozed", name="poll")
    s.event("waiting", "snoozed")
    s.event("active", "snoozed", prev="waiting")
    end = s.event("delayed", "snoozed", after=5, due_ms=s.now + 500)
    s.record(end, "snoozed", "snoozed", name="poll", worker="w2", began=s.now - 5, ended=s.now)
    s.event("waiting", "snoozed", prev="delayed", after=500)
    s.event("active", "snoozed", prev="waiting")
    s.event("completed", "snoozed", prev="active", after=5, result="null")

    s.event("added", "parent", name="sum")
    s.event("waiting-children", "parent")
    s.event("waiting", "parent", prev="waiting-children", after=40)
    s.event("active", "parent", prev="waiting")
    s.event("completed", "parent", prev="active", after=3, result="6")

    s.run("replayed", ("failed", {"reason": "no"}), name="charge")
    s.event("retries-exhausted", "replayed", after=0, attempts_made=1)
    s.event("waiting", "replayed", prev="failed", after=5000)
    s.event("active", "replayed", prev="waiting")
    s.event("completed", "replayed", prev="active", after=8, result="1")

    s.event("added", "cancelled", name="charge")
    s.event("waiting", "cancelled")
    s.event("active", "cancelled", prev="waiting")
    end = s.event("failed", "cancelled", prev="active", after=9, reason="not wanted any more")
    s.record(
        end,
        "failed",
        "cancelled",
        name="charge",
        reason="not wanted any more",
        category="cancelled",
        worker="w1",
    )

    s.event("added", "removed", name="old")
    s.event("waiting", "removed")
    s.event("removed", "removed", prev="wait")

    s.event("active", "before", prev="waiting")  # its beginning is not known
    s.event("completed", "before", prev="active", after=6, result="1")

    s.event("added", "illegal", name="odd")
    s.event("waiting", "illegal")
    s.event("completed", "illegal", prev="active", result="1")

    s.event("added", "holed", name="odd")
    s.event("waiting", "holed")
    s.lose(17)
    s.event("completed", "holed", prev="active", result="1")

    s.event("mine", None)
    s.event(None, None)
    s.event("waiting", None)
    s.event("delayed", "nodelay", extra='{"delay":"soon"}')
    s.event("drained")
    s.sample(MIDNIGHT + 36_060_000 + 100, wait=3, active=1)
    s.sample(MIDNIGHT + 36_060_000 + 200, wait=5, paused=1, active=2, delayed=4)

    s.event("added", "overnight", name="long")
    s.event("waiting", "overnight")
    s.event("active", "overnight", prev="waiting")
    s.event("delayed", "overnight", after=100, due_ms=s.now + DAY_MS)
    s.event("added", "idle", name="long")
    s.event("waiting", "idle")
    return s


def the_next_day(s: Story) -> Story:
    """The ends of the jobs that were open."""
    s.now = MIDNIGHT + DAY_MS
    s.event("waiting", "overnight", prev="delayed")
    s.event("active", "overnight", prev="waiting")
    s.event("completed", "overnight", prev="active", after=30, result="1")
    s.event("removed", "plain", prev="completed")
    return s
