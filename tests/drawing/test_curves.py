"""Curves over linear and logarithmic axes."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from oxcart.drawing.curves import curves


def _path(svg: str) -> list[tuple[float, float]]:
    found = re.search(r'class="line"[^>]*d="M([^"]*)"', svg)
    assert found
    return [(float(x), float(y)) for x, y in (point.split() for point in found[1].split("L"))]


def test_a_straight_line_stays_straight() -> None:
    svg = curves("t", {"a": [(0.0, 0.0), (5.0, 50.0), (10.0, 100.0)]}, across="x", up="y")
    (x1, y1), (x2, y2), (x3, y3) = _path(svg)
    assert x1 < x2 < x3
    assert y1 > y2 > y3, "more is higher"
    assert abs((x1 + x3) / 2 - x2) < 0.2
    assert abs((y1 + y3) / 2 - y2) < 0.2


def test_equal_factors_are_equal_steps_of_a_logarithmic_axis() -> None:
    svg = curves("t", {"a": [(1.0, 2.0), (10.0, 20.0), (100.0, 200.0)]}, across="x", up="y", log=(True, True))
    (x1, y1), (x2, y2), (x3, y3) = _path(svg)
    assert abs((x2 - x1) - (x3 - x2)) < 0.2
    assert abs((y2 - y1) - (y3 - y2)) < 0.2


def test_texts_are_escaped_and_axes_are_labelled() -> None:
    svg = curves("a < b", {"<script>": [(1.0, 2_000_000.0)]}, across="jobs & more", up="<i>")
    root = ElementTree.fromstring(svg)
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "<script>" in texts
    assert "a < b" in texts
    assert "2 M" in texts
