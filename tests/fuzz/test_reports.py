"""The report and all drawings with hostile text: the picture stays XML, and no text becomes an element."""

from __future__ import annotations

from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from oxcart.drawing.graphs import Node, graph
from oxcart.drawing.sparks import bars, meter, spark
from oxcart.drawing.timeline import Bar, Lane, timeline
from oxcart.history.report.figures import Report
from oxcart.history.report.page import page
from oxcart.history.report.picture import picture

TEXTS = (
    "<script>alert(1)</script>",
    "' onload='alert(1)",
    "]]><!--",
    "&amp;&#0;&bogus;",
    "\x1b[31m\x07\x00\x0b",
    "\ud83d\udcff",
    "\ufffe\uffff",
    "\u202e\u2028",
    "x" * 5000,
)


def report(text: str) -> Report:
    """Returns a report in which every name is this text."""
    schedule = {"queue": text, "schedule": text, "rule": text, "expected": 2, "made": 1, "started": 1}
    late = {"missed": 1, "failed": 0, "late_p50": 1.0, "late_p95": 1.0, "late_max": 1}
    gap = {"queue": text, "cause": text, "count": 3, "refilled": 0, "first_id": "1-0", "last_id": "3-0"}
    states = {"queue": text, "state": text, "jobs": 1}
    waited = {"wait_p99": 1, "arrivals": 4}
    return Report(
        day="2026-11-02",
        version=1,
        queues=[{"queue": text, "failed": 3, "completed": 1, "stalls": 0, "retries": 0, **waited}],
        names=[{"queue": text, "name": text}],
        points=[],
        width=60_000,
        span=(0, 60_000),
        failures=[{"queue": text, "name": text, "message": text, "fatal": 3, "category": text}],
        gaps=[gap],
        states=[states],
        flows=[],
        schedules=[{**schedule, **late}],
    )


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_report_with_hostile_text_is_a_page_and_a_picture(text: str) -> None:
    made = report(text)
    ElementTree.fromstring(picture(made).encode())
    elements = _Elements()
    elements.feed(page(made).encode().decode())
    assert "script" not in elements.found
    assert elements.handlers == []


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_drawings_with_hostile_text_have_no_elements_of_it(text: str) -> None:
    drawn = [
        spark([1.0, 2.0], text, text),
        bars([1.0, 2.0], text, text, [text, text]),
        meter([(text, 0.5)], text),
        timeline([Lane(text, (Bar(0, 9, text, text),))], text),
        graph([Node(text, text, text, text, text), Node("b", "b", "b", "b", "b")], [(text, "b")], [], text),
    ]
    for one in drawn:
        elements = _Elements()
        elements.feed(one)
        assert "script" not in elements.found
        assert elements.handlers == []
