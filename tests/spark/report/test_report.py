"""The report shows the values of gold."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

pytest.importorskip("pyspark")

from oxcart.drawing.charts import CHARTS
from oxcart.history.report.buckets import points_of
from oxcart.history.report.collect import collect
from oxcart.history.report.figures import Report, shown
from oxcart.history.report.overview import sentences
from oxcart.history.report.page import page
from oxcart.history.report.source import DuckdbSource, Open
from oxcart.history.report.text import lines
from oxcart.spark.build.builder import Builder
from oxcart.spark.lake.tables import Tables
from oxcart.spark.lake.versions import Change, Lake
from tests.browser import Browser
from tests.history.report.made_up import made_up
from tests.spark.report.picture import draw
from tests.spark.story import the_day

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Drawn(HTMLParser):
    """Values of the charts, and everything that the page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[tuple[str, str, int], float] = {}
        self.outside: list[str] = []
        self.open: list[str] = []
        self._figure, self._series = "", [""]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        actual = dict(attrs)
        if tag == "figure":
            self._figure, self._series = str(actual["id"]), str(actual["data-series"]).split(",")
        if "data-at" in actual:
            for column, value in zip(self._series, str(actual["data-v"]).split(","), strict=True):
                if value:
                    self.values[self._figure, column, int(str(actual["data-at"]))] = float(value)
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


def values_of(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, int], float]:
    """The values that charts of these rows show."""
    return {
        (f"{row['queue']}/{chart.name}", line.column, row["start_ms"]): float(row[line.column])
        for row in rows
        for chart in CHARTS
        for line in chart.lines
        if row[line.column] is not None
    }


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    made = Tables(spark, Lake(tmp_path_factory.mktemp("lake")))
    files = made.write(the_day().bronze(spark), "events")
    made.lake.publish(Change("ingest", add=files))
    Builder(spark, made.lake).refresh()
    return made


@pytest.fixture(scope="module")
def report(tables: Tables) -> Report:
    return collect(tables.lake)


def test_charts_show_the_values_of_the_report(report: Report) -> None:
    drawn = Drawn()
    drawn.feed(page(report))
    drawn.close()
    assert drawn.open == []
    assert drawn.outside == [], "the page is whole in itself"
    wanted = values_of(report.points)
    assert wanted
    # Short pauses of counts are zeros that no row has.
    assert {key: value for key, value in drawn.values.items() if value or key in wanted} == pytest.approx(
        wanted
    )


@pytest.fixture(params=["DuckDB", "Spark"])
def engine(request: pytest.FixtureRequest, tables: Tables) -> Open:
    return DuckdbSource if request.param == "DuckDB" else tables.source


@pytest.mark.parametrize("width", [1000, 15_000, 60_000, 300_000, 3_600_000, 86_400_000])
def test_buckets_of_any_width_add_up_to_gold(
    tables: Tables, report: Report, engine: Open, width: int
) -> None:
    """Sums and percentiles of every width are made of the same attempts as gold."""
    source = engine(tables.lake.head(), [report.day])
    points = points_of(source, ["q"], width)
    source.close()
    (day,) = report.queues
    for column in ("arrivals", "completed", "failed"):
        assert sum(row[column] for row in points) == day[column]
    assert all(row["start_ms"] % width == 0 for row in points)
    waits: dict[int, list[int]] = {}
    for row in tables.read("attempts", days=[report.day]).filter("wait_ms is not null").collect():
        if row.ended_ms is not None:
            waits.setdefault(row.ended_ms - row.ended_ms % width, []).append(row.wait_ms)
    medians = {row["start_ms"]: row["wait_p50"] for row in points if row["wait_p50"] is not None}
    assert medians == {at: statistics.median(found) for at, found in waits.items()}
    assert points[-1]["backlog_ready"] == 6 or width < 86_400_000


def test_a_browser_shows_the_values(report: Report, tmp_path: Path) -> None:
    """In a real one: nothing on its console, nothing fetched, and each value is in its place."""
    file = tmp_path / "report.html"
    file.write_text(page(report), encoding="utf-8")
    with Browser() as browser:
        opened = browser.page()
        opened.goto(file.as_uri())
        hints = opened.evaluate(
            """[...document.querySelectorAll("rect[data-at]")].map(hint => {
                const chart = hint.closest("svg"), figure = hint.closest("figure"), box = hint.getBBox();
                return {figure: figure.id, series: figure.dataset.series, at: Number(hint.dataset.at),
                        values: hint.dataset.v, middle: box.x + box.width / 2, wide: box.width,
                        seen: chart.getBoundingClientRect().height > 50,
                        drawn: chart.querySelectorAll("path, circle").length};
            })"""
        )
        cells = opened.evaluate(
            "[...document.querySelectorAll('#queues tbody td')].map(cell => cell.innerText)"
        )
        wrong = opened.evaluate("[...document.querySelectorAll('#overview li')].map(one => one.innerText)")
        assert opened.errors == []
        assert opened.requests == [file.as_uri()], "nothing else was asked for"
    shown_values = {
        (hint["figure"], column, hint["at"]): float(value)
        for hint in hints
        for column, value in zip(hint["series"].split(","), hint["values"].split(","), strict=True)
        if value
    }
    wanted = values_of(report.points)
    assert {key: value for key, value in shown_values.items() if value or key in wanted} == pytest.approx(
        wanted
    )
    assert all(hint["seen"] and hint["drawn"] and hint["wide"] > 0 for hint in hints)
    for figure in {hint["figure"] for hint in hints}:
        places = [(hint["at"], hint["middle"]) for hint in hints if hint["figure"] == figure]
        assert [at for at, _ in sorted(places, key=lambda one: one[1])] == [at for at, _ in sorted(places)]
    assert cells[:4] == [
        "q",
        *(shown(report.queues[0][name], name) for name in ("arrivals", "completed", "failed")),
    ]
    assert wrong == sentences(report)


def test_the_day_in_figures(report: Report, tmp_path: Path) -> None:
    assert report.day == "2026-11-02"
    (queue,) = report.queues
    assert (queue["queue"], queue["arrivals"], queue["stalls"], queue["retries"]) == ("q", 13, 1, 3)
    assert [gap["count"] for gap in report.gaps] == [17]
    titles = [title for title, _, rows in lines(report) if rows]
    assert titles == ["Queues on 2026-11-02", "Jobs by name", "Failures", "Gaps"]


def test_a_range_of_days_sums_counts_and_takes_percentiles_of_all_attempts(
    spark: SparkSession, asked: Lake, tmp_path: Path
) -> None:
    tables = Tables(spark, asked)
    both = collect(asked, "2026-11-02", last="2026-12-31")
    days = [
        row.asDict()
        for row in tables.read("queue_metrics").filter("window = 'day' and queue = 'q'").collect()
    ]
    tried = [
        row for row in tables.read("attempts").filter("queue = 'q'").collect() if row.ended_ms is not None
    ]
    assert both.title == f"2026-11-02 to {both.last}"
    assert len({row["day"] for row in days}) > 1
    (queue,) = [row for row in both.queues if row["queue"] == "q"]
    whole = [row for row in days if row["name"] == "*"]
    for column in ("arrivals", "completed", "failed", "retries", "stalls"):
        assert queue[column] == sum(row[column] for row in whole)
    waits = [row.wait_ms for row in tried if row.wait_ms is not None]
    assert queue["wait_p50"] == statistics.median(waits)
    named = {row["name"]: row for row in both.names if row["queue"] == "q"}
    assert named["long"]["completed"] == 1
    assert named["long"]["run_p50"] == statistics.median([row.run_ms for row in tried if row.name == "long"])
    assert (both.form, shown(both.span[1], "last_ms", both.form)) == ("%m-%d %H:%M", "11-03 00:01")
    text = page(both)
    assert f"<h1>{both.title}</h1>" in text
    assert len(text) < 2_000_000


@pytest.mark.parametrize("last", [None, "2026-12-31"])
def test_spark_and_duckdb_collect_equal_reports(spark: SparkSession, asked: Lake, last: str | None) -> None:
    day = "2026-11-02" if last else None
    found = collect(asked, day, last=last)
    assert rounded(collect(asked, day, last=last, source=Tables(spark, asked).source)) == rounded(found)
    if last:
        shown_tables = ("queues", "names", "points", "failures", "gaps", "states", "flows", "schedules")
        assert [name for name in shown_tables if not getattr(found, name)] == []


def rounded(report: Report) -> Any:
    """A report whose numbers are the same in both engines: the last digit of a percentile differs."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return round(value, 6) if isinstance(value, float) else value

    return plain(msgspec.to_builtins(report))


def test_names_and_messages_are_escaped(report: Report) -> None:
    from msgspec.structs import replace

    bad = "<script>alert('x')</script>"
    rows = [{**row, "queue": bad} for row in report.points]
    text = page(replace(report, points=rows, failures=[{**report.failures[0], "message": bad}]))
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


def test_a_lake_without_a_day_is_no_error(tmp_path: Path) -> None:
    empty = collect(Lake(tmp_path))
    assert empty.day == ""
    assert "No day yet" in page(empty)


def test_charts_are_legible_on_a_phone(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(made_up(2)), encoding="utf-8")
    with Browser() as browser:
        opened = browser.page()
        opened.call(
            "Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=True
        )
        opened.goto(file.as_uri())
        assert opened.evaluate("document.documentElement.scrollWidth") == 400
        charts = opened.evaluate(
            """[...document.querySelectorAll("figure svg")].map(chart =>
                [...chart.querySelectorAll("text")].map(text => text.getBoundingClientRect())
                .filter(box => box.width).map(box => [box.left, box.top, box.right, box.bottom]))"""
        )
    assert len(charts) == 6
    for labels in charts:
        assert len(labels) >= 6
        for number, (left, top, right, bottom) in enumerate(labels):
            assert bottom - top >= 10
            assert left >= 0
            assert right <= 400
            for other in labels[:number]:
                apart = other[2] <= left or right <= other[0] or other[3] <= top or bottom <= other[1]
                assert apart, (labels, number)


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
