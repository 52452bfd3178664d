"""Curves of one figure over another as SVG, with linear or logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

_WIDE, _HIGH, _LEFT, _RIGHT, _TOP, _LOW = 720, 360, 76, 150, 30, 44
_COLOURS = ("#2a78d6", "#1f9d63", "#d2483f", "#8a5cc2", "#c28a1f", "#4a5a68")

Points = Sequence[tuple[float, float]]


def curves(
    title: str,
    lines: Mapping[str, Points],
    *,
    across: str,
    up: str,
    log: tuple[bool, bool] = (False, False),
) -> str:
    """Draws curves.

    Args:
        title: What they show.
        lines: The points of each curve, by its label, from left to right.
        across: The name and unit of the horizontal axis.
        up: The same of the vertical axis.
        log: Whether the axes are logarithmic; then all values must be above 0.

    Returns:
        A whole SVG document.
    """
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    place_x, marks_x = _scale(xs, log[0], _LEFT, _WIDE - _RIGHT)
    place_y, marks_y = _scale(ys, log[1], _HIGH - _LOW, _TOP)
    parts = [f'<text x="{_LEFT}" y="18" class="title">{escape(title)}</text>']
    for value in marks_x:
        x = place_x(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{_HIGH - _LOW}"/>')
        parts.append(f'<text x="{x:.1f}" y="{_HIGH - _LOW + 16}" text-anchor="middle">{_short(value)}</text>')
    for value in marks_y:
        y = place_y(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDE - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_short(value)}</text>')
    middle = (_LEFT + _WIDE - _RIGHT) / 2
    parts.append(f'<text x="{middle:.1f}" y="{_HIGH - 8}" text-anchor="middle">{escape(across)}</text>')
    half = (_HIGH - _LOW + _TOP) / 2
    turned = f'transform="rotate(-90 16 {half:.1f})" text-anchor="middle"'
    parts.append(f'<text x="16" y="{half:.1f}" {turned}>{escape(up)}</text>')
    for number, (label, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = "L".join(f"{place_x(x):.1f} {place_y(y):.1f}" for x, y in points)
        parts.append(f'<path class="line" stroke="{colour}" d="M{path}"/>')
        parts += [
            f'<circle cx="{place_x(x):.1f}" cy="{place_y(y):.1f}" r="2.5" fill="{colour}"/>'
            for x, y in points
        ]
        at = _TOP + 14 + 18 * number
        parts.append(f'<text x="{_WIDE - _RIGHT + 12}" y="{at}" fill="{colour}">{escape(label)}</text>')
    style = (
        "text { font: 12px system-ui, sans-serif; } .title { font-weight: 600; font-size: 14px; } "
        ".grid { stroke: #8884; } path { fill: none; } .line { stroke-width: 1.8; }"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {_HIGH}" role="img" '
        f'aria-label="{escape(title)}"><style>{style}</style>'
        f'<rect width="{_WIDE}" height="{_HIGH}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _scale(
    values: Sequence[float], is_log: bool, first: float, last: float
) -> tuple[Callable[[float], float], list[float]]:
    """Returns where a value is on an axis, and the values to mark."""
    high = max(values)
    if is_log:
        low_power, high_power = math.floor(math.log10(min(values))), math.ceil(math.log10(high))
        high_power = max(high_power, low_power + 1)
        marks = [10.0**power for power in range(low_power, high_power + 1)]

        def place(value: float) -> float:
            part = (math.log10(value) - low_power) / (high_power - low_power)
            return first + (last - first) * part

        return place, marks
    step = 10.0 ** math.floor(math.log10(high or 1.0))
    step = next(step * part for part in (0.2, 0.5, 1, 2) if high / (step * part) <= 6)
    marks = [step * number for number in range(math.ceil(high / step) + 1)]
    return lambda value: first + (last - first) * value / marks[-1], marks


def _short(value: float) -> str:
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
