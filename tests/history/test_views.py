"""Objectives, anomalies, capacity, costs and changes: histories with known answers."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from oxcart.history.reader import LakeReader
from oxcart.spark.lake.columns import VIEWED, public
from oxcart.spark.lake.versions import Change, LakeError
from oxcart.spark.views.objectives import FILE
from tests.history.histories import DAY, HOUR, MINUTE, Row, child, firing, job, metric, timing, weeks
from tests.history.lakes import DAY as DATE
from tests.history.lakes import MIDNIGHT, make_lake, write

OBJECTIVES = """
[objectives.sent]
queue = "mail"
success = 0.99

[objectives.prompt]
queue = "mail"
name = "send"
wait = "5s"
share = 0.9
"""


def ask(root: Path, text: str, objectives: str = OBJECTIVES, **tables: list[Row]) -> list[dict[str, Any]]:
    lake = make_lake(root / "lake", **tables)
    (lake.root / FILE).write_text(objectives, encoding="utf-8")
    with LakeReader(lake) as reader:
        return reader.sql(text).dicts()


class TestSlo:
    def test_burn_is_the_share_of_bad_events_over_the_budget(self, tmp_path: Path) -> None:
        """2 % fail in the last hour, 1 % in the five before it, nothing in the days before that."""
        rows = [timing(10 * DAY - MINUTE, completed=98, failed=2)]
        rows += [timing(10 * DAY - n * HOUR - MINUTE, completed=99, failed=1) for n in range(1, 6)]
        rows += [timing(10 * DAY - n * HOUR - MINUTE, completed=100) for n in range(6, 240)]
        found = ask(
            tmp_path,
            "SELECT * FROM slo WHERE objective = 'sent' AND hours_ago = 0",
            timings=rows,
            queue_metrics=[metric(10 * DAY - MINUTE)],
        )[0]
        assert (found["total_1h"], found["bad_1h"]) == (100, 2)
        assert found["burn_1h"] == pytest.approx(2)
        assert found["burn_6h"] == pytest.approx(7 / 600 / 0.01)
        assert found["burn_3d"] == pytest.approx(7 / 7200 / 0.01)
        assert (found["total_30d"], found["bad_30d"]) == (24_000, 7)
        assert found["budget_left"] == pytest.approx(1 - 7 / 24_000 / 0.01)

    def test_windows_end_at_the_newest_minute_and_whole_hours_before(self, tmp_path: Path) -> None:
        """The newest minute is of another queue; the minute 60 minutes before it is in the hour before."""
        now = 3 * HOUR + 30 * MINUTE
        found = ask(
            tmp_path,
            "SELECT total_1h FROM slo WHERE objective = 'sent' ORDER BY hours_ago",
            timings=[
                timing(now - HOUR + MINUTE, completed=1),
                timing(now - HOUR, completed=10),
                timing(now - 2 * HOUR + MINUTE, completed=100),
                timing(now - 2 * HOUR, completed=1000, queue="other"),
            ],
            queue_metrics=[metric(now, queue="other")],
        )
        assert [row["total_1h"] for row in found] == [1, 110]

    def test_a_wait_objective_counts_attempts_below_its_limit(self, tmp_path: Path) -> None:
        found = ask(
            tmp_path,
            "SELECT * FROM slo WHERE objective = 'prompt'",
            timings=[
                timing(0, waits={0: 80, 4900: 10, 5000: 7, 60_000: 3}, lane="all;c=gpu"),
                timing(0, waits={90_000: 1000}, name="other"),
            ],
            queue_metrics=[metric(0)],
        )[0]
        assert (found["total_1h"], found["bad_1h"], found["within_ms"]) == (100, 10, 5000)
        assert found["burn_1h"] == pytest.approx(1)
        assert found["budget_left"] == pytest.approx(0)

    def test_jobs_that_fail_without_an_attempt_are_bad_and_cancelled_ones_do_not_count(
        self, tmp_path: Path
    ) -> None:
        found = ask(
            tmp_path,
            "SELECT total_1h, bad_1h FROM slo WHERE objective = 'sent'",
            timings=[timing(0, completed=7, unrun=3, cancelled=50)],
            queue_metrics=[metric(0)],
        )
        assert found == [{"total_1h": 10, "bad_1h": 3}]

    def test_an_hour_without_events_has_no_burn(self, tmp_path: Path) -> None:
        found = ask(
            tmp_path,
            "SELECT burn_1h, burn_6h FROM slo WHERE objective = 'sent' AND hours_ago = 0",
            timings=[timing(0, completed=1, failed=1)],
            queue_metrics=[metric(2 * HOUR)],
        )
        assert found == [{"burn_1h": None, "burn_6h": pytest.approx(50)}]

    def test_without_objectives_there_are_no_rows(self, tmp_path: Path) -> None:
        tables = {"timings": [timing(0, completed=1)], "queue_metrics": [metric(0)]}
        assert ask(tmp_path, "SELECT * FROM slo", "", **tables) == []


class TestAnomalies:
    TEXT = "SELECT measure, value, expected, spread, score, weeks FROM anomalies ORDER BY measure"

    def test_a_value_far_from_the_same_hour_of_earlier_weeks_is_found(self, tmp_path: Path) -> None:
        """Median 1000 and median deviation 10, so the floor of 100 (a tenth) is the spread."""
        before = [980, 990, 1000, 1000, 1010, 1020]
        rows = weeks([{"arrivals": value} for value in (*before, 2000)])
        (found,) = ask(tmp_path, self.TEXT, queue_metrics=rows)
        assert (found["measure"], found["value"], found["expected"], found["weeks"]) == (
            "rate",
            2000,
            1000,
            6,
        )
        assert (found["spread"], found["score"]) == (pytest.approx(100), pytest.approx(10))

    def test_one_outlier_among_the_weeks_before_does_not_hide_another(self, tmp_path: Path) -> None:
        before = [100, 100, 5000, 100, 100, 100]
        (found,) = ask(tmp_path, self.TEXT, queue_metrics=weeks([{"arrivals": n} for n in (*before, 5000)]))
        assert (found["expected"], found["spread"]) == (100, 10)

    def test_the_spread_of_the_weeks_before_is_allowed(self, tmp_path: Path) -> None:
        """Median 350 and median deviation 150: 1.4826 * 150 * 5 = 1112 more would be an anomaly."""
        before = [100, 200, 300, 400, 500, 600]
        quiet = weeks([{"arrivals": n} for n in (*before, 1400)])
        assert ask(tmp_path / "a", self.TEXT, queue_metrics=quiet) == []
        loud = weeks([{"arrivals": n} for n in (*before, 1470)])
        (found,) = ask(tmp_path / "b", self.TEXT, queue_metrics=loud)
        assert found["spread"] == pytest.approx(1.4826 * 150)

    def test_too_few_weeks_or_attempts_are_not_judged(self, tmp_path: Path) -> None:
        assert (
            ask(tmp_path / "a", self.TEXT, queue_metrics=weeks([{"arrivals": n} for n in (1, 1, 1, 9000)]))
            == []
        )
        few = [{"completed": 19, "wait_p90": 1.0}] * 6 + [{"failed": 19, "wait_p90": 90_000.0}]
        assert ask(tmp_path / "b", self.TEXT, queue_metrics=weeks(few)) == []

    def test_an_hour_that_is_not_over_is_not_judged(self, tmp_path: Path) -> None:
        rows = weeks([{"arrivals": n} for n in (1000, 1000, 1000, 1000, 1000, 3)])
        assert [row["value"] for row in ask(tmp_path / "a", self.TEXT, queue_metrics=rows)] == [3]
        rows[-1] = metric(30 * MINUTE)
        assert ask(tmp_path / "b", self.TEXT, queue_metrics=rows) == []

    def test_failures_waits_and_runs_are_judged_by_their_own_noise(self, tmp_path: Path) -> None:
        usual: Row = {"completed": 99, "retries": 1, "wait_p90": 40.0, "run_p90": 1000.0}
        bad: Row = {"completed": 80, "failed": 20, "wait_p90": 139.0, "run_p90": 2100.0}
        found = {
            row["measure"]: row for row in ask(tmp_path, self.TEXT, queue_metrics=weeks([*[usual] * 5, bad]))
        }
        assert set(found) == {"failures", "run"}  # 99 ms more wait is below five times 20 ms
        likely = 2 / 102
        assert found["failures"]["spread"] == pytest.approx(math.sqrt(likely * (1 - likely) / 100))
        assert (found["run"]["spread"], found["run"]["score"]) == (200, pytest.approx(5.5))

    def test_fewer_failures_are_no_anomaly(self, tmp_path: Path) -> None:
        usual, good = {"completed": 50, "retries": 50}, {"completed": 100}
        assert ask(tmp_path, self.TEXT, queue_metrics=weeks([*[usual] * 5, good])) == []


class TestCapacity:
    TEXT = "SELECT arrivals, load, busy, run_mean, within_ms, target, workers FROM capacity"

    @pytest.mark.parametrize(
        ("arrivals", "run_ms", "wait", "share", "workers"),
        [
            # 200 calls an hour of 180 s, 80 % answered within 20 s: the example of every Erlang C table.
            (200, 180_000, "20s", 0.8, 14),
            (200, 180_000, "20s", 0.95, 16),
            # One Erlang: C(2, 1) = 1/3, C(3, 1) = 1/11, C(4, 1) = 1/49.
            (3600, 1000, "1ms", 0.65, 2),
            (3600, 1000, "1ms", 0.9, 3),
            (3600, 1000, "1ms", 0.97, 4),
        ],
    )
    def test_workers_are_those_of_erlang_c(
        self, tmp_path: Path, arrivals: int, run_ms: int, wait: str, share: float, workers: int
    ) -> None:
        declared = f'[objectives.w]\nqueue = "mail"\nwait = "{wait}"\nshare = {share}\n'
        (found,) = ask(
            tmp_path,
            self.TEXT,
            declared,
            timings=[timing(0, completed=arrivals, run_total=arrivals * run_ms)],
            queue_metrics=[metric(0, "hour", arrivals=arrivals), metric(HOUR)],
        )
        assert found["workers"] == workers
        assert found["load"] == pytest.approx(arrivals * run_ms / HOUR)

    def test_retries_are_work_and_a_growing_backlog_counts_by_its_arrivals(self, tmp_path: Path) -> None:
        """Half of 1000 arrivals were run, each twice: 2 s of work per job make 2000 s of load an hour."""
        (found,) = ask(
            tmp_path,
            self.TEXT,
            "",
            timings=[timing(0, completed=500, retries=500, run_total=1_000_000)],
            queue_metrics=[metric(0, "hour", arrivals=1000), metric(HOUR)],
        )
        assert (found["load"], found["busy"]) == (pytest.approx(2000 / 3600), pytest.approx(1000 / 3600))
        assert (found["run_mean"], found["within_ms"], found["target"]) == (1000, 1000, 0.99)

    def test_a_large_load_is_computed_without_overflow(self, tmp_path: Path) -> None:
        """Square-root staffing: about a + 2.4 sqrt(a) for 1 % that wait at all."""
        (found,) = ask(
            tmp_path,
            self.TEXT,
            '[objectives.w]\nqueue = "mail"\nwait = "1ms"\nshare = 0.99\n',
            timings=[timing(0, completed=3_600_000, run_total=3_600_000_000)],
            queue_metrics=[metric(0, "hour", arrivals=3_600_000), metric(HOUR)],
        )
        assert 1000 + 2 * 31.6 < found["workers"] < 1000 + 3 * 31.6


class TestCosts:
    def test_rows_of_one_key_add_up_and_tags_stand_beside_the_total(self, tmp_path: Path) -> None:
        def spent(run: int, wasted: int, **more: Any) -> Row:
            known = {"name": "send", "tenant": "acme", "attempts": 1, "last_ms": MIDNIGHT}
            return {**known, "run_total": run, "wasted_total": wasted, **more}

        rows = [
            spent(1000, 0),
            spent(500, 500),
            spent(500, 500, tag="plan", value="pro"),
            spent(9, 0, tenant="b"),
        ]
        found = ask(
            tmp_path,
            "SELECT tenant, tag, value, attempts, worker_s, wasted_s FROM costs ORDER BY tenant, tag",
            spending=rows,
        )
        assert [tuple(row.values()) for row in found] == [
            ("acme", None, None, 2, 1.5, 0.5),
            ("acme", "plan", "pro", 1, 0.5, 0.5),
            ("b", None, None, 1, 0.009, 0),
        ]


class TestChanges:
    TEXT = "SELECT * FROM changes ORDER BY version"

    def test_a_version_is_compared_with_the_one_before_it(self, tmp_path: Path) -> None:
        rows = [
            timing(0, completed=990, failed=10, runs={90: 600, 200: 400}, version="1"),
            timing(HOUR, completed=100, retries=100, runs={110: 150, 500: 50}, version="2"),
            timing(2 * HOUR, completed=199, retries=1, runs={110: 200}, version="3"),
            timing(2 * HOUR, completed=99, version="4"),
            timing(0, completed=5),
        ]
        first, second, third, fourth = ask(tmp_path, self.TEXT, timings=rows)
        assert (first["previous"], first["failing"], first["running"], first["run_p90"]) == (
            None,
            None,
            None,
            200,
        )
        assert (second["previous"], second["failing"], second["running"]) == ("1", "more", "slower")
        assert (second["failure_share"], second["previous_failure_share"]) == (0.5, 0.01)
        pooled = 110 / 1200
        assert second["failure_score"] == pytest.approx(
            0.49 / math.sqrt(pooled * (1 - pooled) * (1 / 200 + 1 / 1000))
        )
        assert (second["run_p50"], second["previous_run_p50"], second["run_p90"]) == (110, 90, 500)
        assert (third["failing"], third["running"]) == ("less", "same")
        assert (fourth["failing"], fourth["running"]) == (None, None)  # 99 attempts are too few

    def test_partial_rows_of_a_version_add_up(self, tmp_path: Path) -> None:
        rows = [timing(0, completed=10, runs={n: 10}, version="1") for n in (10, 20, 30, 40)]
        (found,) = ask(tmp_path, self.TEXT, timings=rows)
        assert (found["attempts"], found["run_p50"], found["run_p90"]) == (40, 20, 40)


class TestCriticalPaths:
    def test_the_child_that_ended_last_decided_how_long_a_tree_took(self, tmp_path: Path) -> None:
        """`sum` waited for `slow`; `late` ended when `sum` ran already."""
        found = ask(
            tmp_path,
            "SELECT step, steps, job_id, lane, total_ms, took_ms, share FROM critical_paths ORDER BY step",
            jobs=[job("sum", 0, 900, 1000, queue="top")],
            flows=[
                child("quick", 0, 100, 300),
                child("slow", 0, 100, 800, queue="mail@all;c=gpu"),
                child("late", 0, 100, 950),
            ],
            attempts=[{"queue": "top", "job_id": "sum", "first_id": "sum-0", "started_ms": MIDNIGHT + 900}],
        )
        assert [tuple(row.values()) for row in found] == [
            (1, 2, "slow", "all;c=gpu", 1000, 800, pytest.approx(0.8)),
            (2, 2, "sum", None, 1000, 200, pytest.approx(0.2)),
        ]

    def test_a_reader_of_a_day_opens_the_days_of_its_trees_alone(self, tmp_path: Path) -> None:
        lake = make_lake(tmp_path / "lake", jobs=[job("old", 0, 1, 2)])
        for number in range(1, 4):
            noon = number * DAY + 12 * HOUR
            day = {"day": DATE + timedelta(days=number)}
            jobs = [{**job(f"sum{number}", noon, 1, 9, queue="top"), **day}]
            flows = [{**child(f"part{number}", noon, 1, 2, parent=f"sum{number}"), **day}]
            lake.publish(Change("build", add=[write(lake, "jobs", jobs), write(lake, "flows", flows)]))
        for file in (*lake.head().of("jobs"), *lake.head().of("flows")):
            if file.day != "2026-11-04":
                lake.place(file).unlink()
        text = "SELECT flow_id, job_id FROM critical_paths"
        with LakeReader(lake, days=["2026-11-04"]) as reader:
            assert list(reader.sql(f"{text} ORDER BY step")) == [("sum2", "part2"), ("sum2", "sum2")]
        with LakeReader(lake) as reader:
            found = list(reader.sql(f"{text} WHERE day = '2026-11-04' ORDER BY step"))
            assert found == [("sum2", "part2"), ("sum2", "sum2")]
            assert list(reader.sql(f"{text} WHERE day > '2026-11-05'")) == []
            with pytest.raises(LakeError):
                reader.sql(text)


class TestSchedules:
    TEXT = (
        "SELECT schedule, expected, made, missed, failed, late_max FROM schedules ORDER BY schedule, expected"
    )

    def test_missed_runs_are_those_of_the_rule_between_two_runs(self, tmp_path: Path) -> None:
        found = ask(
            tmp_path,
            self.TEXT,
            firings=[
                *(firing("beat", minute * MINUTE, every_ms=MINUTE) for minute in (1, 2, 5)),
                *(firing("hourly", hour * HOUR, cron="0 * * * *", tz="Europe/Berlin") for hour in (1, 4)),
                firing("broken", HOUR, cron="never"),
                firing("broken", 2 * HOUR, cron="never", state="failed"),
                firing("peer", HOUR),
                firing("next", HOUR, state="delayed", started_ms=None, every_ms=MINUTE),
            ],
        )
        assert [tuple(row.values()) for row in found] == [
            ("beat", 5, 3, 2, 0, 5),
            ("broken", None, 2, None, 1, 5),
            ("hourly", 4, 2, 2, 0, 5),
            ("peer", None, 1, None, 0, 5),
        ]

    def test_a_run_without_a_rule_has_that_of_its_neighbours(self, tmp_path: Path) -> None:
        runs = [
            firing("beat", 1 * MINUTE),
            firing("beat", 2 * MINUTE, every_ms=MINUTE),
            firing("beat", 4 * MINUTE),
        ]
        assert [tuple(row.values()) for row in ask(tmp_path, self.TEXT, firings=runs)] == [
            ("beat", 4, 3, 1, 0, 5)
        ]

    def test_a_reader_of_a_day_looks_back_as_far_as_a_monthly_schedule(self, tmp_path: Path) -> None:
        """A run of 35 days before the day counts as the previous one; older files are not opened."""
        lake = make_lake(tmp_path / "lake", firings=[firing("beat", 0, every_ms=DAY)])
        for number in (1, 36, 44):
            rows = [{**firing("beat", number * DAY, every_ms=DAY), "day": DATE + timedelta(days=number)}]
            lake.publish(Change("build", add=[write(lake, "firings", rows)]))
        day = (DATE + timedelta(days=36)).isoformat()
        first, *_, last = lake.head().of("firings")
        for file in (first, last):
            lake.place(file).unlink()
        with LakeReader(lake, days=[day]) as reader:
            assert list(reader.sql("SELECT day::VARCHAR, made, missed FROM schedules")) == [(day, 1, 34)]


def test_columns_are_those_of_the_list(tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake", timings=[timing(0)], queue_metrics=[metric(0)])
    with LakeReader(lake) as reader:
        for view in VIEWED:
            assert list(reader.sql(f"SELECT * FROM {view}").columns) == list(public(view)), view
