"""Adds the ends of Bridge jobs that other clients ended to bronze, from the jobs' records.

Other clients write no events. A record has the times when the job was made, and when its last run started and
ended. Each becomes one row of bronze of the kind ``refill``. Of a job whose events are in bronze only the end
is added. Runs before the last, and jobs of other clients that have not ended, are not in records.

Rows about the making of a job come before all entries of the stream (``life`` 0), rows about its end after
the entries that were read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as fn

from oxcart.broker.export import EVENTS
from oxcart.spark.build.refill import SKEW, moments, write_refill
from oxcart.spark.lake.bronze import BRONZE
from oxcart.spark.lake.versions import Change
from oxcart.spark.read.connection import split_key
from oxcart.spark.read.entries import ENTRY, REFILL, day_of
from oxcart.spark.read.position import read_position

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from oxcart.spark.lake.tables import Tables

#: The mark with the time from which on ends are new.
MARK = "foreign:"
#: How late a client may write the end of a job, and how wrong its clock may be, in ms.
LATE = 600_000
#: The share of time that the scan of all records may take.
LOOKING = 0.1


class BridgeRefill:
    """Adds jobs that other clients ended to bronze.

    Args:
        tables: The lake's tables.
        options: The source's options for the server and its queues.
        name: The pipeline's name.
        offsets: Returns where bronze ends.
    """

    def __init__(
        self,
        tables: Tables,
        options: Mapping[str, str],
        name: str,
        offsets: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._tables = tables
        self._options = dict(options)
        self._mark = f"{MARK}{name}"
        self._offsets = offsets
        self._next = float("-inf")

    def run(self) -> int:
        """Scans the records, if it is time; returns how many jobs it added.

        Raises:
            LakeConflict: Another pipeline of this lake was first.
        """
        began = time.monotonic()
        if began < self._next:
            return 0
        now = time.time_ns() // 1_000_000
        lake = self._tables.lake
        before = lake.head().marks.get(self._mark)
        ends = self._ends(before or 0).persist()
        try:
            jobs, first = ends.agg(
                fn.count(fn.lit(1)), fn.min(fn.least("ended_ms", fn.unix_millis("created_at")))
            ).collect()[0]
            if not jobs:
                return 0
            new = self._new(ends, day_of(max(0, first))).persist()
            try:
                files, recorded = write_refill(
                    self._tables, new, [split_key(key)[0] for key in self._offsets()]
                )
                jobs = new.select("queue", "job_id").distinct().count() if files else 0
            finally:
                new.unpersist()
        finally:
            ends.unpersist()
            self._next = time.monotonic() + (time.monotonic() - began) / LOOKING
        if files:
            marks = {self._mark: now - LATE}
            lake.publish(
                Change("foreign", add=[*files, *recorded], marks=marks, expects={self._mark: before})
            )
        return int(jobs)

    def _ends(self, since: int) -> DataFrame:
        """Jobs that another client ended since then."""
        jobs = self._tables.spark.read.format("oxcart").options(**self._options).load()
        ended = fn.col("state").isin("completed", "failed") & fn.col("ended_at").isNotNull()
        found = jobs.filter(ended & fn.col("worker").isNull())
        return found.withColumn("ended_ms", fn.unix_millis("ended_at")).filter(fn.col("ended_ms") >= since)

    def _new(self, ends: DataFrame, first_day: str) -> DataFrame:
        """The moments of jobs that bronze does not have."""
        known = self._known(first_day)
        made = known.filter(fn.col("event") == "added").select("queue", "job_id").distinct()
        same = (
            (ends["queue"] == known["queue"])
            & (ends["job_id"] == known["job_id"])
            & (ends["state"] == known["event"])
            & (fn.abs(ends["ended_ms"] - known["at_ms"]) <= SKEW)
        )
        new = ends.join(known, same, "left_anti").join(
            made.withColumn("_made", fn.lit(True)), ["queue", "job_id"], "left"
        )
        events = new.select("queue", "job_id", "_made", fn.explode(fn.array(*moments())).alias("_m"))
        making = fn.col("rank") < 2
        found = events.select("queue", "job_id", "_made", "_m.*").filter(
            fn.col("at_ms").isNotNull() & (~making | fn.col("_made").isNull())
        )
        life, last = self._places()
        return found.withColumns(
            {
                "life": fn.when(making, 0).otherwise(life),
                "ordinal": fn.when(making, fn.col("rank")).otherwise(last).cast("bigint"),
                "entry_id": fn.concat_ws("-r", "at_ms", "rank"),
            }
        )

    def _known(self, first_day: str) -> DataFrame:
        """The times in bronze at which jobs were added and ended."""
        days = {day for day in self._tables.lake.head().days(BRONZE) if day >= first_day}
        bronze = self._tables.read(BRONZE, days=days)
        return bronze.filter(
            fn.col("kind").isin(ENTRY, REFILL)
            & (fn.col("stream") == EVENTS)
            & fn.col("event").isin("added", "completed", "failed")
        ).select("queue", "job_id", "event", "at_ms")

    def _places(self) -> tuple[Column, Column]:
        """Generation and ordinal of the last entry that was read, by queue."""
        ends = [(split_key(key)[0], read_position(value)) for key, value in self._offsets().items()]
        queue = fn.col("queue")
        life, last = fn.lit(1), fn.lit(0)
        for name, at in ends:
            life = fn.when(queue == name, at.life).otherwise(life)
            last = fn.when(queue == name, at.n).otherwise(last)
        return life, last
