"""The report shows the values of gold."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from oxcart.spark.build.builder import Builder
from oxcart.spark.lake.tables import Tables
from oxcart.spark.lake.versions import Change, Lake
from oxcart.spark.report.figures import Report, collect, shown
from oxcart.spark.report.page import page
from oxcart.spark.report.text import lines
from tests.browser import Browser
from tests.spark.report.picture import draw
from tests.spark.story import the_day

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Drawn(HTMLParser):
    """Points of the charts, and everything that the page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.points: dict[tuple[str, int], float] = {}
        self.outside: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        actual = dict(attrs)
        if tag == "circle":
            key = (str(actual["data-series"]), int(str(actual["data-start"])))
            self.points[key] = float(str(actual["data-value"]))
        if tag in ("script", "img", "iframe"):
            self.outside.append(tag)
        self.outside += [
            str(actual[name]) for name in ("src", "href") if actual.get(name) not in (None, "data:,")
        ]
        if tag not in ("meta", "link", "line", "!doctype"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    made = Tables(spark, Lake(tmp_path_factory.mktemp("lake")))
    files = made.write(the_day().bronze(spark), "events")
    made.lake.publish(Change("ingest", add=files))
    Builder(spark, made.lake).refresh()
    return made


@pytest.fixture(scope="module")
def report(tables: Tables) -> Report:
    return collect(tables)


def test_charts_show_the_values_of_gold(tables: Tables, report: Report) -> None:
    drawn = Drawn()
    drawn.feed(page(report))
    drawn.close()
    assert drawn.open == []
    assert drawn.outside == [], "the page needs no other file"
    gold = tables.read("queue_metrics").filter("window = 'minute' and name = '*'").collect()
    wanted = {
        (column, row.start_ms): float(row[column])
        for row in gold
        for column in ("arrivals", "completed", "failed", "wait_p50", "wait_p99", "backlog_ready")
        if row[column] is not None
    }
    assert {key: value for key, value in drawn.points.items() if key in wanted} == wanted


def test_a_browser_shows_the_values_of_gold(tables: Tables, report: Report, tmp_path: Path) -> None:
    """A real browser logs no errors, fetches nothing, and shows every chart in its place."""
    file = tmp_path / "report.html"
    file.write_text(page(report), encoding="utf-8")
    with Browser() as browser:
        opened = browser.page()
        opened.goto(file.as_uri())
        points = opened.evaluate(
            """[...document.querySelectorAll("circle")].map(point => {
                const chart = point.closest("svg"), box = point.getBBox();
                const line = chart.querySelector(`path.${point.dataset.kind}`);
                const near = line !== null && line.getAttribute("d").includes(
                    `${point.getAttribute("cx")},${point.getAttribute("cy")}`);
                return {figure: point.closest("figure").id, series: point.dataset.series,
                        start: Number(point.dataset.start), value: Number(point.dataset.value),
                        at: box.y + box.height / 2, near, seen: chart.getBoundingClientRect().height > 50};
            })"""
        )
        cells = opened.evaluate(
            "[...document.querySelectorAll('#queues tbody td')].map(cell => cell.innerText)"
        )
        assert opened.errors == []
        assert opened.requests == [file.as_uri()], "nothing else was requested"
    gold = tables.read("queue_metrics").filter("window = 'minute' and name = '*'").collect()
    charts = {
        "q/jobs": ("arrivals", "completed", "failed"),
        "q/wait": ("wait_p50", "wait_p99"),
        "q/backlog": ("backlog_ready", "backlog_active", "backlog_delayed"),
    }
    wanted = {
        (figure, column, row.start_ms): float(row[column])
        for figure, columns in charts.items()
        for row in gold
        for column in columns
        if row[column] is not None
    }
    assert {(one["figure"], one["series"], one["start"]): one["value"] for one in points} == wanted
    assert all(one["near"] and one["seen"] for one in points), "each point is on its line"
    for figure in charts:
        heights = [(one["value"], -one["at"]) for one in points if one["figure"] == figure]
        assert [value for value, _ in sorted(heights)] == [value for value, _ in sorted(heights, key=_height)]
    assert cells[:4] == [
        "q",
        *(shown(report.queues[0][name], name) for name in ("arrivals", "completed", "failed")),
    ]


def _height(point: tuple[float, float]) -> tuple[float, float]:
    return (point[1], point[0])


def test_the_day_in_figures(report: Report, tmp_path: Path) -> None:
    assert report.day == "2026-11-02"
    (queue,) = report.queues
    assert (queue["queue"], queue["arrivals"], queue["stalls"], queue["retries"]) == ("q", 13, 1, 3)
    assert [gap["count"] for gap in report.gaps] == [17]
    titles = [title for title, _, rows in lines(report) if rows]
    assert titles == ["Queues on 2026-11-02", "Jobs by name", "Failures", "Gaps"]


def test_names_and_messages_are_escaped(report: Report) -> None:
    from msgspec.structs import replace

    bad = "<script>alert('x')</script>"
    rows = [{**row, "queue": bad} for row in report.minutes]
    text = page(replace(report, minutes=rows, failures=[{**report.failures[0], "message": bad}]))
    assert "<script>" not in text


def test_values_as_people_read_them() -> None:
    assert [shown(value, "x") for value in (None, 1234567, 0.5, 99.96, 1234.5, "t")] == [
        "–",
        "1,234,567",
        "0.5",
        "100",
        "1,234",
        "t",
    ]


def test_a_lake_without_a_day_is_no_error(spark: SparkSession, tmp_path: Path) -> None:
    empty = collect(Tables(spark, Lake(tmp_path)))
    assert empty.day == ""
    assert "No day yet" in page(empty)


def test_the_picture_of_the_docs_is_drawn_by_its_command(spark: SparkSession, tmp_path: Path) -> None:
    """After a change of the report's looks, run `make pipeline-picture`."""
    drawn = draw(spark, tmp_path / "lake")
    kept = Path(__file__).parents[3] / "docs" / "pipeline.svg"
    assert drawn == kept.read_text(encoding="utf-8")
    assert len(drawn) < 100_000
    with Browser() as browser:
        opened = browser.page()
        opened.goto(kept.as_uri())
        assert opened.evaluate("document.querySelectorAll('path').length") == 8
        assert opened.errors == []
