"""Questions about the service as a whole open the files of the days that they need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from oxcart.history import service
from oxcart.history.reader import LakeReader
from oxcart.spark.lake.versions import Lake, Version
from oxcart.spark.views.objectives import FILE
from tests.history.histories import DAY, HOUR, MINUTE, day_of, metric, timing
from tests.history.lakes import MIDNIGHT, make_lake

SINCE = day_of(MIDNIGHT - DAY).isoformat()
Question = tuple[Callable[[Version], LakeReader], Callable[[LakeReader], list[dict[str, Any]]]]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Four months of one hour a day; the last one is bad, and of a new version."""
    days = range(-120, 1)
    bad = {0: {"arrivals": 900, "completed": 50, "failed": 50}}
    usual = {"arrivals": 100, "completed": 100}
    made = make_lake(
        tmp_path / "lake",
        timings=[
            timing(
                at * DAY,
                completed=200,
                failed=0 if at else 200,
                run_total=9_000_000,
                version="2" if not at else "1",
            )
            for at in days
        ],
        queue_metrics=[
            row
            for at in days
            for row in (metric(at * DAY, "hour", **bad.get(at, usual)), metric(at * DAY + HOUR, "minute"))
        ],
        spending=[
            {
                "day": day_of(MIDNIGHT + at * DAY),
                "name": "send",
                "attempts": 1,
                "run_total": 1000,
                "wasted_total": 0,
                "last_ms": MIDNIGHT + at * DAY + MINUTE,
            }
            for at in days
        ],
    )
    (made.root / FILE).write_text('[objectives.sent]\nqueue = "mail"\nsuccess = 0.99\n', encoding="utf-8")
    return made


QUESTIONS: dict[str, Question] = {
    "objectives": (service.objectives_reader, service.objectives),
    "hours": (
        lambda version: service.objectives_reader(version, 168),
        lambda reader: service.objective_hours(reader, 168),
    ),
    "anomalies": (
        lambda version: service.anomalies_reader(version, SINCE),
        lambda reader: service.anomalies(reader, SINCE),
    ),
    "capacity": (
        lambda version: service.since_reader(version, SINCE),
        lambda reader: service.capacity(reader, SINCE),
    ),
    "costs": (
        lambda version: service.since_reader(version, SINCE),
        lambda reader: service.costs(reader, SINCE),
    ),
    "changes": (
        lambda version: service.changes_reader(version, SINCE),
        lambda reader: service.changes(reader, SINCE),
    ),
}
#: The most days that each question opens.
DAYS = {"objectives": 32, "hours": 39, "anomalies": 18, "capacity": 2, "costs": 2, "changes": 93}


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_needs_the_files_of_its_days_alone(lake: Lake, name: str) -> None:
    reader_of, question = QUESTIONS[name]
    with LakeReader(lake) as reader:
        wanted = question(reader)
    assert wanted
    head = lake.head()
    with reader_of(head) as reader:
        needed = set(reader._chosen(["timings", "queue_metrics", "spending"]) or ())
    kept = {file.day for file in head.of("timings")} & needed
    assert 0 < len(kept) <= DAYS[name]
    for file in head.files.values():
        if file.day not in kept:
            lake.place(file).unlink()
    with reader_of(head) as reader:
        found = question(reader)
    if name == "changes":  # the version before has the figures of the days that were read
        for row in (*wanted, *found):
            row.pop("previous_attempts")
            row.pop("failure_score")
    assert found == wanted
