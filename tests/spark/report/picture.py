"""The picture of docs/pipeline.md: the report of a made-up morning, the same whenever it is drawn.

    python -m tests.spark.report.picture docs/pipeline.svg

A queue gets 20 jobs a minute. For ten minutes the service behind it refuses, jobs are retried, and the
backlog grows and then shrinks. The events go through Spark like any others.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxcart.history.report.collect import collect
from oxcart.history.report.picture import picture
from oxcart.spark.build.builder import Builder
from oxcart.spark.lake.tables import Tables
from oxcart.spark.lake.versions import Change, Lake
from oxcart.spark.session import QUICK_SETTINGS, open_session
from tests.spark.story import MIDNIGHT, Story

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTES = 60
PER_MINUTE = 20
#: The minutes in which the service refuses.
BAD = range(20, 30)


def morning() -> Story:
    """An hour of events."""
    chance = random.Random(7)
    begin = MIDNIGHT + 9 * 3_600_000
    moments: list[tuple[int, str, str, dict[str, Any]]] = []
    for number in range(MINUTES * PER_MINUTE):
        job = str(number)
        at = begin + number * 60_000 // PER_MINUTE + chance.randrange(2000)
        moments.append((at, "added", job, {"name": chance.choice(("receipt", "invoice", "reminder"))}))
        moments.append((at, "waiting", job, {}))
        for attempt in (1, 2, 3):
            minute = (at - begin) // 60_000
            behind = 0 if minute < BAD.start else max(0, min(minute - BAD.start, 2 * BAD.stop - minute - 15))
            started = at + chance.randrange(5, 60) + behind * chance.randrange(300, 900)
            ended = started + chance.randrange(20, 400)
            moments.append((started, "active", job, {"prev": "waiting"}))
            refused = minute in BAD and chance.random() < 0.6
            if not refused:
                moments.append((ended, "completed", job, {"prev": "active", "result": "1"}))
                break
            reason = f"connection to 10.0.0.{chance.randrange(9)} refused"
            if attempt == 3:
                moments.append((ended, "failed", job, {"prev": "active", "reason": reason}))
                break
            at = ended + 20_000 * attempt
            moments.append((ended, "delayed", job, {"due_ms": at}))
            moments.append((at, "waiting", job, {"prev": "delayed"}))
    story = Story("mail", begin)
    # One after the other, and never two at one moment: that is how a stream numbers them.
    for at, event, job, fields in sorted(moments, key=lambda moment: moment[:2]):
        story.event(event, job, after=max(1, at - story.now), **fields)
    for minute in range(MINUTES):
        until = begin + (minute + 1) * 60_000 - 1
        places = {job: event for at, event, job, _ in sorted(moments, key=lambda one: one[0]) if at <= until}
        counts = {
            place: sum(event == actual for event in places.values())
            for place, actual in (("wait", "waiting"), ("active", "active"), ("delayed", "delayed"))
        }
        story.sample(until, **counts)
    return story


def draw(spark: SparkSession, folder: Path) -> str:
    """The picture, by way of a lake in a folder."""
    tables = Tables(spark, Lake(folder, clock=lambda: MIDNIGHT))
    tables.lake.publish(Change("ingest", add=tables.write(morning().bronze(spark), "events")))
    Builder(spark, tables.lake).refresh()
    return picture(collect(tables.lake))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        Path(sys.argv[1]).write_text(
            draw(open_session(settings=QUICK_SETTINGS), Path(made)), encoding="utf-8"
        )
