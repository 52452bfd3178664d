"""A flame graph as SVG: a frame is as wide as its cost, and stands on the function that called it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from benchmarks.flames import Frame
from oxcart.drawing.charts import WIDE
from oxcart.drawing.labels import drawable, fitted

#: Heights of a frame and of the title, and the size of the font.
_FRAME, _TITLE, _SIZE = 17, 26, 11
#: The least width of a frame with a label.
_LABELLED = 24
#: Light colours, under dark text; groups take them in the order of their cost.
_COLOURS = ("#f6c177", "#9ccfd8", "#c4a7e7", "#eb9f9f", "#a3d9a5", "#d9cba3", "#b3c7f0", "#e6b3d3", "#cfd3d8")
_STYLE = (
    f"text {{ font: {_SIZE}px system-ui, sans-serif; fill: #1a1c20; }} .title {{ font-size: 13px; }} "
    "rect { stroke: #fff; stroke-width: .5; }"
)


def flame(title: str, frames: Sequence[Frame]) -> str:
    """Draws a tree of frames.

    Args:
        title: What is drawn.
        frames: The outermost frames; they hold the others.
    """
    costs: dict[str, float] = {}
    _own(frames, costs)
    groups = sorted(costs, key=lambda group: -costs[group])
    colours = {group: _COLOURS[min(at, len(_COLOURS) - 1)] for at, group in enumerate(groups)}
    deep = _deep(frames)
    low = _TITLE + deep * _FRAME
    keys = list(_keys(groups, colours, low + 18))
    high = low + 28 + 18 * (len(keys) - 1)
    drawn = "".join(_rows(frames, 0.0, low - _FRAME, colours))
    return drawable(
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDE} {high}' role='img' "
        f"aria-label='{escape(title, quote=True)}'><style>{_STYLE}</style>"
        f"<rect width='{WIDE}' height='{high}' fill='#fff'/>"
        f"<text class='title' x='4' y='16'>{escape(title)}</text>"
        f"{drawn}{''.join(keys)}</svg>\n"
    )


def _own(frames: Sequence[Frame], costs: dict[str, float]) -> None:
    for frame in frames:
        below = sum(one["cost"] for one in frame["under"])
        costs[frame["group"]] = costs.get(frame["group"], 0.0) + max(0.0, frame["cost"] - below)
        _own(frame["under"], costs)


def _deep(frames: Sequence[Frame]) -> int:
    return 1 + max(_deep(frame["under"]) for frame in frames) if frames else 0


def _rows(frames: Sequence[Frame], left: float, top: int, colours: dict[str, str]) -> Iterator[str]:
    for frame in frames:
        wide = WIDE * frame["cost"] / 1000
        hint = escape(f"{frame['name']}: {frame['cost'] / 10:.1f} %")
        box = f"x='{left:.1f}' y='{top}' width='{wide:.1f}' height='{_FRAME}'"
        yield f"<rect {box} fill='{colours[frame['group']]}'><title>{hint}</title></rect>"
        if wide >= _LABELLED:
            label = fitted(frame["name"], wide - 4, _SIZE)
            if len(label) > 2:
                yield f"<text x='{left + 2:.1f}' y='{top + 12}'>{escape(label)}</text>"
        yield from _rows(frame["under"], left, top - _FRAME, colours)
        left += wide


def _keys(groups: Sequence[str], colours: dict[str, str], top: int) -> Iterator[str]:
    """Draws the meanings of the colours, a few in a row; groups beyond the colours share the last one."""
    named = [*groups[: len(_COLOURS) - 1], *(["the rest"] if len(groups) >= len(_COLOURS) else [])]
    each, across = 232, 4
    for first in range(0, len(named), across):
        row = ""
        for at, group in enumerate(named[first : first + across]):
            left = 4 + at * each
            colour = colours.get(group, _COLOURS[-1])
            row += f"<rect x='{left}' y='{top - 10}' width='12' height='12' fill='{colour}'/>"
            row += f"<text x='{left + 16}' y='{top}'>{escape(fitted(group, each - 20, _SIZE))}</text>"
        yield row
        top += 18
