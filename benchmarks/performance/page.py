"""The text of docs/performance.md and its charts, from the figures."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.flames import read
from benchmarks.growth import FLAT, QUESTIONS, Question, judge
from benchmarks.performance.chart import chart
from benchmarks.performance.counted import counted
from benchmarks.performance.flame import flame
from benchmarks.performance.table import Figures, source, table
from benchmarks.performance.timed import timed
from benchmarks.soak.verdict import LONG

PAGE, CHARTS = "docs/performance.md", "docs/performance"
#: The most expensive things that the page lists.
LISTED = 10
_TITLES = {
    "queued": "Server instructions per job, by the jobs that wait in the queue",
    "payload": "Server instructions per job, by the bytes of its payload",
    "lanes": "Server instructions per job, by the lanes of the queue",
    "groups": "Server instructions per job, by the groups with waiting jobs",
}
#: The flame graphs.
_FLAMES = {
    "server-process": "Instructions of the server while jobs are claimed and completed",
    "server-add": "Instructions of the server while jobs are added by the thousand",
    "client-process": "Time of a worker with a handler that does nothing",
    "client-add": "Time of a producer that adds jobs by the thousand",
}


def charts(figures: Figures) -> dict[str, str]:
    """Returns the charts by their names."""
    drawn = {}
    for question in QUESTIONS:
        rows = _rows(figures, question.name)
        if len(rows) > 1:
            lines = {
                label: [(size, row[kind]) for size, row in rows]
                for kind, label in (("add", "add"), ("process", "claim and complete"))
            }
            drawn[f"growth-{question.name}"] = chart(_TITLES[question.name], question.unit, lines)
    samples = figures.get("soak", {}).get("figures", {}).get("samples", [])
    if len(samples) > 1:
        memory = {
            "worker": [(one["jobs"], one["worker"]) for one in samples],
            "server": [(one["jobs"], one["server"]) for one in samples],
        }
        drawn["soak"] = chart("Memory in MiB, by the jobs that have ended", "jobs", memory)
    for name, frames in figures.get("flames", {}).get("figures", {}).items():
        drawn[f"flame-{name}"] = flame(_FLAMES[name], read(frames))
    return drawn


def page(figures: Figures) -> str:
    """Returns the page."""
    parts = [
        *_head(),
        *timed(figures),
        *counted(figures),
        *_growth(figures),
        *_hottest(figures),
        *_flames(figures),
        *_soak(figures),
        *_again(),
    ]
    return "\n".join(parts) + "\n"


def _head() -> Iterator[str]:
    yield "# Performance"
    yield ""
    yield "<!-- Generated from performance.json by `make performance`; a test compares both. -->"
    yield ""
    yield "Counts of instructions repeat on a shared machine within 1 %, timings do not. So costs are"
    yield "counted, under valgrind's callgrind, and only comparisons with other systems are timed."
    yield "[benchmarks/README.md](../benchmarks/README.md) has all commands."
    yield ""


def _growth(figures: Figures) -> Iterator[str]:
    if "growth" not in figures:
        return
    yield "## Growth"
    yield ""
    yield f"What a job costs the server by what is there already. {source(figures['growth'])}"
    yield "A server is filled and restarted under callgrind. It counts while 1 000 jobs (200 with payloads)"
    yield "are added, or claimed and completed 50 at a time."
    yield ""
    for question in QUESTIONS:
        rows = _rows(figures, question.name)
        if not rows:
            continue
        yield f"### By {question.unit}"
        yield ""
        if len(rows) > 1:
            yield f"![{_TITLES[question.name]}](performance/growth-{question.name}.svg)"
            yield ""
        by_byte = question.name == "payload"
        more = ", and per further byte" if by_byte else ""
        cells = [
            [f"{size:,}", *(_cell(row, rows[0], kind, size, by_byte) for kind in ("add", "process"))]
            for size, row in rows
        ]
        yield from table([question.unit, f"add, per job{more}", f"claim and complete, per job{more}"], cells)
        yield ""
        if len(rows) > 1:
            yield _verdict_of_bytes(question, rows) if by_byte else _verdict(rows)
        yield ""


def _cell(
    row: dict[str, float], first: tuple[int, dict[str, float]], kind: str, size: int, by_byte: bool
) -> str:
    cost, least = row[kind], first[1][kind]
    if not by_byte:
        return f"{cost:,.0f} ({cost / least:.2f}×)"
    further = f" ({(cost - least) / (size - first[0]):.1f})" if size > first[0] else ""
    return f"{cost:,.0f}{further}"


def _verdict(rows: list[tuple[int, dict[str, float]]]) -> str:
    worst = max(
        (row[kind] / rows[0][1][kind], kind, size) for size, row in rows for kind in ("add", "process")
    )
    ratio, kind, size = worst
    word = "adding" if kind == "add" else "claiming and completing"
    if ratio <= FLAT:
        return f"Flat: no size costs over {FLAT:.2f} times the smallest."
    sizes = f"at {size:,} as at {rows[0][0]:,}"
    return f"**Not flat**: {word} costs {ratio:.2f} times as much {sizes}; the bar is {FLAT:.2f}."


def _verdict_of_bytes(question: Question, rows: list[tuple[int, dict[str, float]]]) -> str:
    faults = judge(question, dict(rows))
    if not faults:
        return (
            f"Flat per byte: no further byte costs over {FLAT:.2f} times as much as one of a smaller payload."
        )
    return f"**Not flat**: {'; '.join(faults)}; the bar is {FLAT:.2f}."


def _hottest(figures: Figures) -> Iterator[str]:
    if "hottest" not in figures:
        return
    found = figures["hottest"]["figures"]["process"]
    things = sorted(found["things"].items(), key=lambda pair: -pair[1])[:LISTED]
    whole = found["instructions"]
    yield "## The ten most expensive things"
    yield ""
    yield f"Where the {whole:,} instructions go that the server takes to claim and complete a job."
    yield source(figures["hottest"])
    yield "Functions are counted by themselves and joined to things (`make bench-hottest`)."
    yield ""
    rows = [
        [thing, f"{count:,}", f"{count / whole:.0%}", figures["done"].get(thing, "–")]
        for thing, count in things
    ]
    yield from table(["thing", "instructions", "share", "what was done about it"], rows)
    yield ""
    added = figures["hottest"]["figures"]["add"]
    most = sorted(added["things"].items(), key=lambda pair: -pair[1])[:5]
    listed = "; ".join(f"{thing} {count:,}" for thing, count in most)
    yield f"An add of many takes {added['instructions']:,} instructions per job. The largest parts: {listed}."
    yield ""


def _flames(figures: Figures) -> Iterator[str]:
    if "flames" not in figures:
        return
    yield "## Flame graphs"
    yield ""
    yield "Every function stands on the one that called it, as wide as its share (`make bench-flames`)."
    yield "The server's are counts of instructions, the client's are samples by a timer."
    yield source(figures["flames"])
    yield "The packaged server has no names for its Lua; a command that stands on it was called by a script."
    yield ""
    for name in figures["flames"]["figures"]:
        yield f"![{_FLAMES[name]}](performance/flame-{name}.svg)"
        yield ""


def _soak(figures: Figures) -> Iterator[str]:
    if "soak" not in figures:
        return
    soak = figures["soak"]["figures"]
    yield "## Soak"
    yield ""
    yield f"`make soak BENCH='--jobs {soak['asked']}'`: {soak['title']}. {source(figures['soak'])}"
    yield "Twenty kinds of jobs on three queues and both protocols. The server keeps the last 1 000 completed"
    yield f"and failed jobs of each queue, which fill at first; memory is judged from {LONG:,} jobs on."
    yield ""
    if len(soak["samples"]) > 1:
        yield "![Memory in MiB, by the jobs that have ended](performance/soak.svg)"
        yield ""
    rows = []
    for one in soak["findings"]:
        word = "holds" if one["holds"] else "**does not hold**"
        rows.append([one["what"], one["measured"].replace("\n", "<br>"), one["bound"], word])
    yield from table(["what", "measured", "bound", ""], rows)
    yield ""


_COMMANDS = (
    ("make bench", "times Oxcart and other systems, for the first table"),
    (
        "make bench-instructions",
        "counts instructions of server and client per job, beside Node, the bare bound and another commit",
    ),
    ("make bench-growth", "counts what the charts of growth show"),
    ("make bench-hottest", "counts the most expensive things"),
    ("make bench-flames", "counts and samples by call stacks"),
    ("make soak", "measures memory and accounts for every key"),
    ("make bench-gate", "fails if a job costs the server over 2 % more than the committed baseline"),
    (
        'make performance TAKE="time instructions growth hottest flames soak"',
        "takes the figures of those six for this page",
    ),
)


def _again() -> Iterator[str]:
    yield "## Again"
    yield ""
    yield from table(["command", "what it does"], [[f"`{command}`", what] for command, what in _COMMANDS])


def _rows(figures: Figures, name: str) -> list[tuple[int, dict[str, float]]]:
    sizes = figures.get("growth", {}).get("figures", {}).get(name, {}).get("sizes", {})
    return sorted((int(size), row) for size, row in sizes.items())
