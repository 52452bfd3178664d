"""The timeline of a job as SVG: its states and its attempts, drawn to scale.

Coordinates are shares of the width, so that bars stretch with the page and labels keep their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

#: The height of a row, of a bar, and of the axis; the share of the width that a bar has at least.
_ROW, _BAR, _AXIS, _LEAST = 30, 18, 22, 0.4
#: Steps between the labels of the axis, in ms, and the most labels.
_STEPS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1000, 2000, 5000, 10_000, 15_000, 30_000),
    *(60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000),
    *(3_600_000, 7_200_000, 21_600_000, 43_200_000),
    *(86_400_000, 172_800_000, 604_800_000, 2_592_000_000),
)
_MOST_LABELS = 6


@dataclass(frozen=True)
class Bar:
    """A span of time.

    Attributes:
        start: When it began, in ms.
        end: When it ended, in ms.
        kind: The class of the bar.
        title: Its tooltip.
        is_open: Whether it goes on.
    """

    start: int
    end: int
    kind: str
    title: str
    is_open: bool = False


@dataclass(frozen=True)
class Lane:
    """A row of bars with its label."""

    label: str
    bars: tuple[Bar, ...]


def timeline(lanes: Sequence[Lane], label: str) -> str:
    """Draws lanes of bars over one axis, which begins at the first bar and shows the time since then."""
    known = [bar for lane in lanes for bar in lane.bars]
    if not known:
        return ""
    first = min(bar.start for bar in known)
    span = max(max(bar.end for bar in known) - first, 1)

    def x(at: float) -> float:
        return 100 * (at - first) / span

    drawn: list[str] = []
    high = len(lanes) * _ROW + _AXIS
    for offset in _labels(span):
        place = x(first + offset)
        anchor = "start" if place < 4 else "end" if place > 96 else "middle"
        drawn.append(f"<line class='tick' x1='{place:.2f}%' x2='{place:.2f}%' y1='0' y2='{high - _AXIS}'/>")
        drawn.append(
            f"<text class='tick' x='{place:.2f}%' y='{high - 6}' text-anchor='{anchor}'>"
            f"{duration(offset)}</text>"
        )
    for row, lane in enumerate(lanes):
        top = row * _ROW + (_ROW - _BAR) // 2
        for bar in lane.bars:
            wide = max(x(bar.end) - x(bar.start), _LEAST)
            left = min(x(bar.start), 100 - wide)
            going = " open" if bar.is_open else ""
            drawn.append(
                f"<rect class='bar {escape(bar.kind, quote=True)}{going}' x='{left:.3f}%' y='{top}' "
                f"width='{wide:.3f}%' height='{_BAR}' rx='3'><title>{escape(bar.title)}</title></rect>"
            )
    return (
        f"<svg class='timeline' role='img' aria-label='{escape(label, quote=True)}' width='100%' "
        f"height='{high}'>{''.join(drawn)}</svg>"
    )


def _labels(span: int) -> list[int]:
    step = next((one for one in _STEPS if span <= one * _MOST_LABELS), 0)
    if not step:
        step = -(-span // _MOST_LABELS)
    return list(range(0, span + 1, step))


def duration(ms: float) -> str:
    """Returns a time in ms as people read it.

    Example:
        >>> [duration(ms) for ms in (0, 45, 1500, 90_000, 5_400_000, 200_000_000)]
        ['0', '45 ms', '1.5 s', '1 m 30 s', '1 h 30 m', '2 d 7 h']
    """
    if ms < 1000:
        return f"{ms:.0f} ms" if ms else "0"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.3g} s"
    for size, name, below, lower in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            return f"{whole:,} {name}" + (f" {rest // below} {lower}" if rest // below else "")
    raise AssertionError(ms)
