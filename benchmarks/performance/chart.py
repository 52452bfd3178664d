"""A chart of costs over sizes as SVG: sizes on a logarithmic axis, costs from 0."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from oxcart.drawing.charts import HIGH, STYLE, WIDE, number
from oxcart.drawing.labels import drawable

_LEFT, _RIGHT, _TOP, _LOW = 76, 24, 28, 40
_STYLE = (
    "text { font: 12px system-ui, sans-serif; fill: #667; } .ink { fill: #1a1c20; } .axis { stroke: #dde; }"
)
#: The colours of lines, as `oxcart.drawing` has them.
_COLOURS = ("a", "b", "c")


def chart(title: str, unit: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Draws lines of (size, cost).

    Args:
        title: What is drawn.
        unit: What the sizes count.
        lines: The points of each line by its label.
    """
    sizes = sorted({size for points in lines.values() for size, _ in points})
    top = _round_up(max(cost for points in lines.values() for _, cost in points))
    first, last = math.log10(sizes[0]), math.log10(sizes[-1])
    inside, high = WIDE - _LEFT - _RIGHT, HIGH + 60

    def x(size: float) -> float:
        return _LEFT + inside * (math.log10(size) - first) / max(last - first, 1)

    def y(cost: float) -> float:
        return _TOP + (high - _TOP - _LOW) * (1 - cost / top)

    drawn = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        at = y(top * share)
        drawn.append(f"<line class='axis' x1='{_LEFT}' x2='{WIDE - _RIGHT}' y1='{at:.1f}' y2='{at:.1f}'/>")
        drawn.append(f"<text x='{_LEFT - 8}' y='{at + 4:.1f}' text-anchor='end'>{number(top * share)}</text>")
    for size in sizes:
        drawn.append(f"<text x='{x(size):.1f}' y='{high - 20}' text-anchor='middle'>{number(size)}</text>")
    drawn.append(f"<text x='{WIDE - _RIGHT}' y='{high - 4}' text-anchor='end'>{escape(unit)}</text>")
    keys = ""
    for colour, (label, points) in zip(_COLOURS, lines.items(), strict=False):
        places = [(x(size), y(cost)) for size, cost in sorted(points)]
        drawn.append(f"<path class='{colour}' d='M{'L'.join(f'{px:.1f},{py:.1f}' for px, py in places)}'/>")
        drawn += (f"<circle class='{colour}' cx='{px:.1f}' cy='{py:.1f}' r='3'/>" for px, py in places)
        keys += f"<tspan dx='10' class='{colour}-key'>{escape(label)}</tspan>"
    return drawable(
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDE} {high}' role='img' "
        f"aria-label='{escape(title, quote=True)}'><style>{STYLE}{_STYLE}</style>"
        f"<rect width='{WIDE}' height='{high}' fill='#fff'/>"
        f"<text class='ink' x='{_LEFT}' y='16'>{escape(title)}{keys}</text>{''.join(drawn)}</svg>\n"
    )


def _round_up(value: float) -> float:
    power: float = 10 ** math.floor(math.log10(value)) if value > 0 else 1
    return next(power * step for step in (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10) if value <= power * step)
