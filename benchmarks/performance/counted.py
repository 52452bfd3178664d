"""What a job costs in instructions, beside Node, the bare bound and an earlier commit."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.instructions import KINDS, PEERS, judge
from benchmarks.performance.table import Figures, source, table

#: What a job should cost the client at most, as a share of what it cost at the base.
AIM = 0.75
_WORK = {"add_many": "add many", "add": "add one", "process": "claim and complete"}


def counted(figures: Figures) -> Iterator[str]:
    """Returns the section's lines."""
    if "instructions" not in figures:
        return
    found = figures["instructions"]["figures"]
    names = {"this": "Oxcart", "base": f"Oxcart at {found['base']}", **PEERS}
    yield "## Instructions per job"
    yield ""
    yield "`make bench-instructions`: each figure is the slope between 2 000 and 6 000 jobs."
    yield source(figures["instructions"])
    yield "The bare bound is one call per 50 jobs that does only what the protocol demands."
    yield "Of Node and of the bound the server is counted alone."
    yield ""
    for side in ("server", "client"):
        if side not in found:
            continue
        there = [name for name in names if name in found[side]]
        cells = [
            [_WORK[kind], *(_cell(found[side], name, kind) for name in there)]
            for kind in KINDS
            if kind in found[side]["this"]
        ]
        yield from table([f"of the {side}", *(names[name] for name in there)], cells)
        yield ""
        yield from _notes(side, found[side])
    if "server" in found:
        rows = []
        for bar, figure in judge(found["server"]):
            shown = f"{figure:,.0f}" if bar.peer is None else f"{figure:.2f} times"
            rows.append([bar.words, shown, "kept" if figure <= bar.most else "**not kept**"])
        yield from table(["bar", "counted", ""], rows)
        yield ""


def _notes(side: str, found: dict[str, dict[str, float]]) -> Iterator[str]:
    ours = found["this"]
    if side == "server" and "node5" in found and ours.get("add", 0) > found["node5"].get("add", ours["add"]):
        yield "A single add of ours is a whole script call, with a journal that makes it repeatable."
        yield "In a batch both are paid once."
        yield ""
    if side == "client" and "base" in found:
        short = [_WORK[kind] for kind in KINDS if kind in ours and ours[kind] > AIM * found["base"][kind]]
        yield f"The aim for the client was {AIM:g} times the earlier figure" + (
            f"; these fell short: {', '.join(short)}." if short else ", and all kinds of work reach it."
        )
        yield ""


def _cell(found: dict[str, dict[str, float]], name: str, kind: str) -> str:
    cost, ours = found[name][kind], found["this"][kind]
    return f"{cost:,.0f}" if name == "this" else f"{cost:,.0f} ({ours / cost:.2f}×)"
