"""Sparklines, small bars and meters as SVG; the stylesheet of a page colours their classes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

#: The size of a sparkline's coordinates; a page stretches it.
WIDE, HIGH = 120, 32


def spark(values: Sequence[float | None], kind: str, label: str, *, top: float | None = None) -> str:
    """Draws a line with a filled area below it. A value that is not known is a gap.

    Args:
        values: The values, oldest first.
        kind: The class of the line.
        label: What it shows, for people who cannot see it.
        top: The value at the upper edge; the highest one unless given.
    """
    highest = max([value for value in values if value is not None], default=0.0)
    scale = max(top or 0.0, highest) or 1.0
    step = WIDE / max(1, len(values) - 1)

    def y(value: float) -> float:
        return HIGH - 2 - (HIGH - 5) * value / scale

    drawn: list[str] = []
    for part in _parts(values):
        points = [(at * step, y(value)) for at, value in part]
        if len(points) == 1:
            points.append((points[0][0] + step / 2, points[0][1]))
        line = "L".join(f"{px:.1f},{py:.1f}" for px, py in points)
        drawn.append(
            f"<path class='area' d='M{points[0][0]:.1f},{HIGH}L{line}L{points[-1][0]:.1f},{HIGH}Z'/>"
        )
        drawn.append(f"<path class='line' d='M{line}'/>")
    return (
        f"<svg class='spark {escape(kind, quote=True)}' viewBox='0 0 {WIDE} {HIGH}' "
        f"preserveAspectRatio='none' role='img' aria-label='{escape(label, quote=True)}'>"
        f"{''.join(drawn)}</svg>"
    )


def bars(values: Sequence[float], kind: str, label: str, titles: Sequence[str] = ()) -> str:
    """Draws one bar per value, for trends of counts.

    Args:
        values: The values, oldest first.
        kind: The class of the bars.
        label: What they show, for people who cannot see them.
        titles: The tooltip of each bar.
    """
    highest = max(values, default=0.0) or 1.0
    step = WIDE / max(1, len(values))
    drawn = []
    for at, value in enumerate(values):
        high = max(1.5, (HIGH - 2) * value / highest) if value else 0.75
        title = f"<title>{escape(titles[at])}</title>" if titles else ""
        empty = "" if value else " class='none'"
        drawn.append(
            f"<rect{empty} x='{at * step:.1f}' y='{HIGH - high:.1f}' width='{max(0.5, step - 1):.1f}' "
            f"height='{high:.1f}' rx='0.8'>{title}</rect>"
        )
    return (
        f"<svg class='bars {escape(kind, quote=True)}' viewBox='0 0 {WIDE} {HIGH}' "
        f"preserveAspectRatio='none' role='img' aria-label='{escape(label, quote=True)}'>"
        f"{''.join(drawn)}</svg>"
    )


def meter(shares: Sequence[tuple[str, float]], label: str) -> str:
    """Draws shares of a whole as one bar, each with its class.

    Args:
        shares: The class and the size of each part.
        label: What it shows, for people who cannot see it.
    """
    total = sum(size for _, size in shares) or 1.0
    at, drawn = 0.0, []
    for kind, size in shares:
        wide = 100 * size / total
        if size:
            drawn.append(
                f"<rect class='{escape(kind, quote=True)}' x='{at:.2f}%' width='{wide:.2f}%' height='100%'/>"
            )
        at += wide
    return (
        f"<svg class='meter' role='img' aria-label='{escape(label, quote=True)}' height='6' width='100%'>"
        f"{''.join(drawn)}</svg>"
    )


def _parts(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    parts: list[list[tuple[int, float]]] = []
    joined = False
    for at, value in enumerate(values):
        if value is None:
            joined = False
            continue
        if not joined:
            parts.append([])
            joined = True
        parts[-1].append((at, value))
    return parts
