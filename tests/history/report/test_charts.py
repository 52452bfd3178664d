"""Charts and pages of made-up reports: buckets follow the span, gaps are gaps, and a page stays small."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from oxcart.drawing.charts import CHARTS, WIDTHS, Axis, draw, title_of
from oxcart.history.report.buckets import MOST_BUCKETS, width_of
from oxcart.history.report.overview import findings, sentences
from oxcart.history.report.page import MOST_BYTES, page
from oxcart.history.report.picture import picture
from tests.history.report.made_up import TEN, made_up, point, row

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
JOBS, WAIT, BACKLOG = CHARTS


@pytest.mark.parametrize(
    ("span", "name"),
    [
        (1000, "second"),
        (3 * MINUTE, "second"),
        (10 * MINUTE, "5 s"),
        (30 * MINUTE, "15 s"),
        (HOUR, "minute"),
        (3 * HOUR, "minute"),
        (12 * HOUR, "5 min"),
        (DAY, "10 min"),
        (3 * DAY, "30 min"),
        (7 * DAY, "hour"),
        (30 * DAY, "6 h"),
        (365 * DAY, "day"),
    ],
)
def test_buckets_follow_the_span(span: int, name: str) -> None:
    width = width_of(span)
    assert WIDTHS[width] == name
    assert span <= MOST_BUCKETS * width or width == DAY
    assert title_of(JOBS, width) == f"jobs per {name}"


@pytest.mark.parametrize("span", [1000, 90_000, HOUR, DAY, 3 * DAY, 90 * DAY])
def test_labels_of_time_do_not_collide(span: int) -> None:
    axis = Axis(TEN, TEN + span, width_of(span))
    places = [(axis.x(at), label) for at, label in axis.labels()]
    assert 1 <= len(places) <= 9
    for (left, text), (right, other) in pairwise(places):
        assert right - left > 7 * max(len(text), len(other)), (text, other)


def test_an_axis_of_several_days_names_them() -> None:
    axis = Axis(TEN, TEN + 3 * DAY, HOUR)
    assert "11-03 00:00" in [label for _, label in axis.labels()]
    assert "<title>11-02 10:00 " in draw([point("q", TEN, 0)], WAIT, axis)
    assert [label for _, label in Axis(TEN, TEN + 4 * DAY, DAY).labels()][-1] == "11-06 00:00"
    assert "10:00" in [label for _, label in Axis(TEN, TEN + HOUR, MINUTE).labels()]


def test_a_single_point_is_visible() -> None:
    drawn = draw([point("q", TEN, 0)], WAIT, Axis(TEN, TEN + MINUTE, MINUTE), hints=False)
    assert drawn.count("<circle") == 2
    assert "<path" not in drawn


def test_a_time_without_values_is_a_gap() -> None:
    axis = Axis(TEN, TEN + 10 * MINUTE, MINUTE)
    rows = [point("q", TEN + number * MINUTE, 1) for number in (0, 1, 2, 5, 8, 9)]
    for chart in CHARTS:
        drawn = draw(rows, chart, axis, hints=False)
        assert drawn.count("<path") == 2 * len(chart.lines), "before and after"
        assert drawn.count("<circle") == len(chart.lines), "the one between"


def test_a_value_that_is_missing_in_a_row_is_a_gap_too() -> None:
    axis = Axis(TEN, TEN + 5 * MINUTE, MINUTE)
    rows = [point("q", TEN + at * MINUTE, 1, **({"wait_p99": None} if at == 2 else {})) for at in range(5)]
    drawn = draw(rows, WAIT, axis, hints=False)
    assert drawn.count("<path class='a'") == 1
    assert drawn.count("<path class='c'") == 2


def test_idle_seconds_of_a_running_pipeline_are_zeros() -> None:
    axis = Axis(TEN, TEN + 60_000, 1000)
    drawn = draw([point("q", TEN, 1), point("q", TEN + 30_000, 1)], JOBS, axis)
    assert re.findall(rf"data-at='{TEN + 15_000}' data-v='([^']*)'", drawn) == ["0,0,0"]
    assert "<circle" not in drawn


def test_the_axis_has_round_numbers() -> None:
    drawn = draw([point("q", TEN, 0, backlog_ready=37)], BACKLOG, Axis(TEN, TEN + MINUTE, MINUTE))
    assert re.findall(r"text-anchor='end'>([\d,.]+)<", drawn)[:3] == ["0", "20", "40"]


@pytest.mark.parametrize("queues", [1, 21, 100, 5000, 30_000])
def test_a_page_of_any_number_of_queues_is_small_and_drops_none_silently(queues: int) -> None:
    text = page(made_up(queues))
    assert len(text.encode()) <= MOST_BYTES
    charted = len(set(re.findall(r"<figure id='([^']+)/jobs'", text)))
    assert charted >= min(queues, 30)
    said = re.search(r"id='uncharted'>([\d,]+) more queues", text)
    assert charted + int(said[1].replace(",", "") if said else 0) == queues
    table = text.partition("<table id='queues'>")[2].partition("</tbody>")[0]
    rest = text.partition("<table id='queues'>")[2].partition("<h2>")[0]
    more = re.search(r"And ([\d,]+) more rows", rest)
    assert table.count("<tr><td") + int(more[1].replace(",", "") if more else 0) == queues


def test_long_names_and_messages_keep_a_page_small() -> None:
    name = "q" * 5000
    failure = {
        "message": "m" * 100_000,
        "count": 1,
        "fatal": 1,
        "queue": name,
        "first_ms": TEN,
        "last_ms": TEN,
    }
    report = replace(made_up(1), failures=[failure] * 20, queues=[row(name, failed=3)] * 2000)
    assert len(page(report).encode()) <= MOST_BYTES
    assert len(picture(report)) < 200_000


class TestOverview:
    def test_a_day_without_faults_says_so(self) -> None:
        assert sentences(made_up(3)) == [
            "Nothing is wrong: no job failed for good, none stalled, and no entry was lost."
        ]

    def test_the_worst_comes_first(self) -> None:
        given: dict[str, Any] = {
            "queues": [
                row("mail", failed=10, completed=90, stalls=2),
                row("video", retries=5000, completed=5000, wait_p99=90_000.0),
            ],
            "failures": [{"queue": "mail", "message": "card <n> refused", "fatal": 9, "count": 30}],
            "gaps": [
                {"queue": "mail", "count": 17, "refilled": 4},
                {"queue": "mail", "count": None, "refilled": None},
            ],
            "schedules": [{"queue": "mail", "schedule": "beat", "missed": 2, "expected": 60}],
        }
        report = replace(made_up(1), **given)
        restored = "of them were restored from job records."
        assert [one.kind for one in findings(report)] == ["lost", "failed", "failed", "late", "late", "odd"]
        assert sentences(report) == [
            f"mail: at least 17 entries of the stream were lost; 4 events {restored}",
            "mail: 10 jobs failed for good, 10.0% of those that ended; most often: card <n> refused (9).",
            "mail: 2 attempts stalled, because their worker died or lost the lease.",
            "video: one job in a hundred waited 90 s or longer before a start.",
            "mail: schedule beat missed 2 of 60 runs.",
            "video: 5,000 attempts were retried, 50% of attempts.",
        ]

    def test_many_findings_are_counted(self) -> None:
        report = replace(made_up(1), queues=[row(f"q{number}", failed=1) for number in range(20)])
        assert sentences(report)[-1] == "And 8 more findings in the tables below."
        assert "What is wrong" in page(report)
