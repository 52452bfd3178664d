"""From bronze to gold: the tables of one day with every kind of event."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.model.test_failure_groups import MASKED
from tests.spark.story import MIDNIGHT, Story, the_day, the_next_day

pytest.importorskip("pyspark")

from pyspark.sql import functions as fn

from oxcart.broker.port.values import LIFETIME_OVER
from oxcart.spark.transforms import build, events
from oxcart.spark.transforms.attempts import attempts
from oxcart.spark.transforms.failures import clusters, failures, frames, normalised
from oxcart.spark.transforms.gaps import counts, gaps
from oxcart.spark.transforms.jobs import jobs
from oxcart.spark.transforms.metrics import figures, queue_metrics, rounded
from oxcart.spark.transforms.transitions import transitions
from oxcart.spark.transforms.usage import spending, timings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOLDEN = Path(__file__).parent / "golden"
FIRST, SECOND = "2026-11-02", "2026-11-03"
Rows = list[dict[str, Any]]


def tables(bronze: DataFrame) -> dict[str, DataFrame]:
    """All tables of some bronze, open jobs included."""
    lives = events.generations(bronze).persist()
    tried = attempts(lives).persist()
    lost = gaps(bronze)
    sampled = counts(bronze)
    return {
        "attempts": tried,
        "jobs": jobs(lives, tried),
        "transitions": transitions(lives, lost),
        "gaps": lost,
        "counts": sampled,
        "quarantine": events.quarantine(bronze).select("entry_id", "event", "job_id", "why"),
        "queue_metrics": queue_metrics(figures(bronze, tried, sampled)),
        "failures": failures(clusters(tried)),
        "timings": timings(lives, tried),
        "spending": spending(tried),
    }


def plain(table: DataFrame) -> Rows:
    """Returns rows as JSON values in a stable order."""
    rows = [row.asDict(recursive=True) for row in table.collect()]
    text = [json.dumps(row, sort_keys=True, default=_text, ensure_ascii=False) for row in rows]
    return [json.loads(row) for row in sorted(text)]


def _text(value: Any) -> str:
    assert isinstance(value, datetime.date)
    return value.isoformat()


@pytest.fixture(scope="module")
def built(spark: SparkSession) -> dict[str, Rows]:
    """Every table of the first day."""
    bronze = the_day().bronze(spark).cache()
    return {name: plain(table) for name, table in tables(bronze).items()}


@pytest.mark.parametrize(
    "table",
    [
        *("attempts", "jobs", "transitions", "gaps", "counts", "quarantine"),
        *("queue_metrics", "failures", "timings", "spending"),
    ],
)
def test_golden(built: dict[str, Rows], table: str) -> None:
    """The tables after the last review; OXCART_GOLDEN=1 rewrites them."""
    path = GOLDEN / f"{table}.jsonl"
    text = "".join(json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in built[table])
    if os.environ.get("OXCART_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def by_job(rows: Rows) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row["job_id"], []).append(row)
    return found


def test_every_job_has_its_state(built: dict[str, Rows]) -> None:
    states = {job: sorted(row["state"] for row in rows) for job, rows in by_job(built["jobs"]).items()}
    assert states == {
        "plain": ["completed"],
        "retried": ["dead_letter"],
        "recorded": ["completed"],
        "stalled": ["completed"],
        "snoozed": ["completed"],
        "parent": ["completed"],
        "replayed": ["completed", "dead_letter"],
        "cancelled": ["cancelled"],
        "removed": ["removed"],
        "before": ["completed"],
        "illegal": ["completed"],
        "holed": ["completed"],
        "nodelay": ["delayed"],
        "overnight": ["retrying"],
        "idle": ["scheduled"],
    }


def test_every_attempt_has_its_outcome(built: dict[str, Rows]) -> None:
    outcomes = {
        job: [row["outcome"] for row in sorted(rows, key=lambda row: row["started_ms"])]
        for job, rows in by_job(built["attempts"]).items()
    }
    assert outcomes == {
        "plain": ["completed"],
        "retried": ["retried", "failed"],
        "recorded": ["retried", "completed"],
        "stalled": ["stalled", "completed"],
        "snoozed": ["snoozed", "completed"],
        "parent": ["completed"],
        "replayed": ["failed", "completed"],
        "cancelled": ["failed"],
        "before": ["completed"],
        "overnight": ["retried"],
    }


def test_wait_begins_when_the_job_is_ready_not_when_it_is_added(built: dict[str, Rows]) -> None:
    first, second = sorted(by_job(built["attempts"])["retried"], key=lambda row: row["attempt"])
    assert (first["wait_ms"], first["run_ms"], second["wait_ms"], second["run_ms"]) == (7, 30, 3, 20)


def test_recorded_fields_are_filled_and_others_are_null(
    built: dict[str, Rows],
) -> None:
    rows = by_job(built["attempts"])
    first = min(rows["recorded"], key=lambda row: row["attempt"])
    assert (first["worker"], first["category"], first["code"], first["told_by"]) == (
        "w1",
        "temporary",
        "E1",
        "record",
    )
    assert first["run_ms"] == 47
    node = rows["plain"][0]
    assert (node["worker"], node["category"], node["code"], node["told_by"]) == (None, None, None, "events")
    assert {name for name, value in node.items() if value is None} == {
        "worker",
        "category",
        "code",
        "stack",
        "reason",
        "version",
        "tenant",
        "tags",
    }


def test_illegal_moves_are_flagged_and_those_over_a_gap_are_unknown(built: dict[str, Rows]) -> None:
    legal = {
        job: [row["legal"] for row in sorted(rows, key=lambda row: row["ordinal"])]
        for job, rows in by_job(built["transitions"]).items()
    }
    assert legal.pop("illegal") == [True, False]
    assert legal.pop("holed") == [True, None]
    assert legal.pop("before") == [None, True]
    assert legal.pop("nodelay") == [None]
    assert all(all(found) for found in legal.values()), legal


def test_end_without_an_attempt_has_its_category_and_metadata(spark: SparkSession) -> None:
    s = Story()
    s.record(s.event("added", "pending", name="n"), "added", "pending", corr="c1", tags='{"a":"1"}')
    s.event("waiting-children", "pending")
    end = s.event("failed", "pending", prev="waiting-children", reason="dependency x failed")
    s.record(end, "failed", "pending", category="permanent", state="failed", corr="c2")

    s.event("added", "late", name="n")
    s.event("waiting", "late")
    s.event("active", "late", prev="waiting")
    end = s.event("delayed", "late", due_ms=s.now + 100)
    s.record(end, "retried", "late", category="temporary", code="E1", reason="busy", worker="w")
    s.event("waiting", "late", prev="delayed")
    s.event("active", "late", prev="waiting")
    end = s.event("delayed", "late", due_ms=s.now + 100)  # it was snoozed, and had failed before
    s.record(end, "snoozed", "late", state="retrying", worker="w")
    s.event("delayed", "late", due_ms=s.now + 200)
    end = s.event("failed", "late", prev="delayed", reason="the lifetime is over")
    s.record(end, "failed", "late", category="timeout", state="dead_letter")
    s.event("added", "held", name="n")
    s.event("waiting", "held")
    s.event("delayed", "held", due_ms=s.now + 86_400_000)  # a limit holds it back
    built = {name: plain(table) for name, table in tables(s.bronze(spark)).items()}
    held, late, pending = sorted(built["jobs"], key=lambda row: str(row["job_id"]))
    assert (late["state"], late["category"], late["code"], late["reason"]) == (
        "dead_letter",
        "timeout",
        None,
        "the lifetime is over",
    )
    assert (late["worker"], late["correlation_id"], late["tags"]) == ("w", None, None)
    assert (pending["state"], pending["category"], pending["reason"]) == (
        "failed",
        "permanent",
        "dependency x failed",
    )
    assert (pending["correlation_id"], pending["tags"], pending["attempts"]) == ("c2", {"a": "1"}, 0)
    assert all(row["legal"] for row in built["transitions"])
    assert [row["to_state"] for row in built["transitions"] if row["job_id"] == "late"].count("retrying") == 2
    day = next(row for row in built["queue_metrics"] if (row["window"], row["name"]) == ("day", "*"))
    assert day["arrivals"] == 3, "a record is no second arrival"
    assert held["state"] == "scheduled", "ready, but for a place"


def test_a_job_that_ends_unrun_and_unrecorded_was_cancelled_or_expired(spark: SparkSession) -> None:
    """Events from before a pipeline was attached have no records."""
    s = Story()
    for job, prev, reason in (
        ("waiting", "wait", "not wanted"),
        ("later", "delayed", "not wanted"),
        ("expired", "prioritized", LIFETIME_OVER),
        ("parent", "waiting-children", "child bull:q:1 failed"),
        ("run", "active", "no"),
    ):
        s.event("added", job, name="n")
        s.event("delayed" if prev == "delayed" else "waiting", job, due_ms=s.now + 10)
        if prev == "active":
            s.event("active", job, prev="waiting")
        elif prev == "waiting-children":
            s.event("waiting-children", job)
        s.event("failed", job, prev=prev, reason=reason)
    built = {name: plain(table) for name, table in tables(s.bronze(spark)).items()}
    assert {row["job_id"]: row["state"] for row in built["jobs"]} == {
        "waiting": "cancelled",
        "later": "cancelled",
        "expired": "dead_letter",
        "parent": "failed",
        "run": "failed",
    }
    wrong = {row["job_id"] for row in built["transitions"] if row["legal"] is False}
    assert wrong <= {"parent"}, "only the move that this test made up"


def test_moves_while_records_are_lost_are_unknown_not_illegal(spark: SparkSession) -> None:
    s = Story()

    def job(name: str, ordinal: int | None) -> None:
        """A job that completes although nothing started it; its record may be lost."""
        s.event("added", name, name="n")
        s.event("waiting", name)
        end = s.event("completed", name, prev="active", after=50)
        if ordinal is not None:
            s.record(end, "completed", name, worker="w")
            s.rows[-1]["ordinal"] = ordinal

    job("before", 1)
    gap = dict(s.rows[-1])
    job("inside", None)
    job("edge", 5)
    job("after", 6)
    fields = {
        "kind": "gap",
        "ordinal": 2,
        "lost": 3,
        "cause": "trimmed",
        "extra": None,
        "event": None,
        "job_id": None,
    }
    s.rows.append({**gap, **fields})
    built = plain(build.tables(s.bronze(spark), persist=False)["transitions"])
    ends = {row["job_id"]: row["legal"] for row in built if row["to_state"] == "completed"}
    assert ends == {"before": None, "inside": None, "edge": None, "after": False}


def test_moves_of_refilled_events_are_unknown_where_their_gap_is_of_a_later_day(spark: SparkSession) -> None:
    """A gap has the day on which it was noticed, and its refilled events their own."""
    s = Story()
    for event, took in (("active", 1), ("delayed", 50), ("active", 100), ("completed", 50)):
        s.event(event, "retried", after=took, due_ms=s.now if event == "delayed" else None)
        s.rows[-1]["kind"] = "refill"
    s.event("active", "wrong")  # whose record has been lost, not its events
    s.event("delayed", "wrong", due_ms=s.now)
    s.event("active", "wrong")
    built = plain(build.tables(s.bronze(spark), persist=False)["transitions"])
    moves = {(row["job_id"], row["from_state"], row["to_state"]): row["legal"] for row in built}
    assert moves["retried", "retrying", "running"] is None
    assert moves["wrong", "retrying", "running"] is False


def test_a_gap_has_ordinals_count_and_cause(built: dict[str, Rows]) -> None:
    (gap,) = built["gaps"]
    assert (gap["count"], gap["cause"], gap["last_lost"] - gap["first_lost"] + 1) == (17, "trimmed", 17)


def test_unusable_entries_are_in_quarantine_with_the_reason(built: dict[str, Rows]) -> None:
    assert sorted(row["why"] for row in built["quarantine"]) == [
        "a delay that is no number",
        "an event of an unknown name",
        "no event field",
        "no jobId field",
    ]


def test_backlog_is_the_last_sample_of_the_window(built: dict[str, Rows]) -> None:
    minute = MIDNIGHT + 36_060_000
    (row,) = (
        row
        for row in built["queue_metrics"]
        if (row["window"], row["start_ms"], row["name"]) == ("minute", minute, "*")
    )
    assert (row["backlog_ready"], row["backlog_active"], row["backlog_delayed"]) == (6, 2, 4)


def test_percentiles_are_exact(spark: SparkSession) -> None:
    s = Story()
    for number in range(1, 101):
        s.run(str(number), ("completed", {}), take=number)
    found = [row for row in plain(tables(s.bronze(spark))["queue_metrics"]) if row["window"] == "day"]
    whole = next(row for row in found if row["name"] == "*")
    built = [whole[f"run_{name}"] for name in ("p50", "p90", "p99", "max")]
    assert built == pytest.approx([50.5, 90.1, 99.01, 100])
    assert (whole["arrivals"], whole["completed"], whole["failed"]) == (100, 100, 0)


def test_long_durations_are_rounded_to_half_a_thousandth(spark: SparkSession) -> None:
    values = [-7, 0, 1, 2047, 2048, 2049, 2050, 4095, 4097, 5000, 60_000, 86_399_999, 123_456_789_012]
    df = spark.createDataFrame([(value,) for value in values], "ms long")
    once = df.select("ms", rounded(fn.col("ms")).alias("r"))
    rows = once.select("ms", "r", rounded(fn.col("r")).alias("again")).collect()
    assert [row.r for row in rows[:9]] == [-7, 0, 1, 2047, 2048, 2050, 2050, 4096, 4096]
    assert all(row.r == row.again for row in rows), "sums of rounded values are rounded sums"
    assert all(abs(row.r - row.ms) <= row.ms / 2048 for row in rows if row.ms >= 0)


def test_failures_that_differ_in_particulars_are_one_cluster(
    built: dict[str, Rows], spark: SparkSession
) -> None:
    messages = {row["message"]: row["count"] for row in built["failures"]}
    assert messages["card <n> refused"] == 1, "the one with a stack is another cluster"
    df = spark.createDataFrame([(text,) for text, _ in MASKED], "t string")
    found = [row.n for row in df.select(normalised(fn.col("t")).alias("n")).collect()]
    assert found == [wanted for _, wanted in MASKED], "as `oxcart failures` masks them"


def test_frames_are_those_nearest_to_the_failure(spark: SparkSession) -> None:
    python = "".join(f'  File "/a/b/m{n}.py", line {n}, in f{n}\n    x\n' for n in range(7))
    node = "Error: no\n    at run (/app/x.js:1:2)\n    at main (/app/y.js:3:4)\n"
    df = spark.createDataFrame([(python,), (node,), (None,), ("nothing",)], "s string")
    assert [row.f for row in df.select(frames(fn.col("s")).alias("f")).collect()] == [
        "m2.py:f2 > m3.py:f3 > m4.py:f4 > m5.py:f5 > m6.py:f6",
        "run > main",
        None,
        None,
    ]


class TestDays:
    """state(D) = f(open jobs at the end of D−1, bronze(D))."""

    @pytest.fixture
    def both(self, spark: SparkSession) -> DataFrame:
        return the_next_day(the_day()).bronze(spark).localCheckpoint()

    def day(self, both: DataFrame, day: str) -> DataFrame:
        return both.filter(fn.col("day") == fn.lit(day).cast("date"))

    def test_the_days_one_by_one_give_what_both_at_once_give(self, both: DataFrame) -> None:
        first = self.day(both, FIRST).localCheckpoint()
        carried = events.open_events(first).localCheckpoint()
        assert {row.job_id for row in carried.collect()} == {"overnight", "idle", "nodelay"}
        second = carried.unionByName(self.day(both, SECOND)).localCheckpoint()
        still = events.open_events(second)
        assert {row.job_id for row in still.collect()} == {"idle", "nodelay"}
        whole = self.rows(both)
        apart = {FIRST: self.rows(first), SECOND: self.rows(second)}
        for name, rows in whole.items():
            joined = [row for day, found in apart.items() for row in found[name] if row["day"] == day]
            wanted = [row for row in rows if row["day"] is not None]
            assert sorted(joined, key=str) == sorted(wanted, key=str), name

    def rows(self, bronze: DataFrame) -> dict[str, Rows]:
        lives = events.generations(bronze).localCheckpoint()
        tried = attempts(lives).localCheckpoint()
        return {
            "attempts": plain(tried),
            "jobs": plain(jobs(lives, tried)),
            "transitions": plain(transitions(lives, gaps(bronze))),
        }

    def test_rows_in_another_order_give_the_same(self, both: DataFrame) -> None:
        mixed = both.orderBy(fn.xxhash64("entry_id")).localCheckpoint()
        assert self.rows(mixed) == self.rows(both)
