"""What systems take in time, beside each other, and the bars that were missed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from benchmarks.performance.table import Figures, source, table
from benchmarks.report import NODE, OURS, PYPI

#: The systems of the table by their headings.
_SYSTEMS = {"Oxcart": (OURS, ""), "Node 5.62.0": (NODE, "5.62.0"), "PyPI 3.4.4": (PYPI, "3.4.4")}
#: Its rows: what is measured, the workload, and the fields that a cell has.
_ROWS = (
    ("process, concurrency 100 (jobs/s)", "process_c100", ("jobs_per_s",)),
    ("the same with two processes (jobs/s)", "process_c100_x2", ("jobs_per_s",)),
    ("the same over a link of 10 ms each way (jobs/s)", "process_c100_10ms", ("jobs_per_s",)),
    ("server time per processed job (µs)", "process_c100", ("server_us_per_job",)),
    ("add many (jobs/s)", "add_many", ("jobs_per_s",)),
    ("add one, p50 / p99 (ms)", "add", ("p50_ms", "p99_ms")),
    ("add to finished, idle worker, p50 / p99 (ms)", "latency", ("p50_ms", "p99_ms")),
)


def timed(figures: Figures) -> Iterator[str]:
    """Returns the section's lines."""
    found = figures["time"]["figures"]
    jobs = f"{found['jobs']:,}".replace(",", " ")
    yield "## In time"
    yield ""
    yield "No-op handler, 100-byte payload, default retention, one Valkey for all. Medians of interleaved"
    yield f'rounds: `make bench BENCH="--check --no-field"`, {jobs} jobs, {found["rounds"]} rounds.'
    yield source(figures["time"])
    yield "[benchmarks/README.md](../benchmarks/README.md) has the method and eight more systems."
    yield ""
    yield from rows(figures)
    yield ""
    short = [one for one in found["floors"] if one["met"] is False]
    if not short:
        yield "All bars on time are met."
        yield ""
        return
    yield "### Fell short"
    yield ""
    yield "A bar is compared with the median of the rounds' ratios."
    if any(one["least"] is None for one in short):
        yield "Where rounds were not kept, it is compared with the ratio of the medians."
    yield ""
    cells = [
        [one["floor"], f"{one['median']:.2f}", _spread(one), figures["short"].get(one["floor"], "–")]
        for one in short
    ]
    yield from table(["bar", "median", "least to most", "why"], cells)
    yield ""


def rows(figures: Figures) -> Iterator[str]:
    """Returns the lines of the table that README.md has too."""
    results = figures["time"]["figures"]["results"]
    cells = [
        [words, *(_cell(results, workload, fields, *system) for system in _SYSTEMS.values())]
        for words, workload, fields in _ROWS
    ]
    yield from table(["", *_SYSTEMS], cells)


def in_readme(text: str, figures: Figures) -> str:
    """Returns README.md with the present table."""
    head, section = text.split("## Performance\n", 1)
    present = "\n".join(rows(figures)) + "\n"
    return f"{head}## Performance\n" + re.sub(
        r"(?:^\|.*\n)+", lambda _: present, section, count=1, flags=re.MULTILINE
    )


def _cell(results: list[Figures], workload: str, fields: tuple[str, ...], system: str, version: str) -> str:
    for one in results:
        if (one["workload"], one["system"]) == (workload, system) and version in ("", one["version"]):
            return " / ".join(_figure(field, one[field]) for field in fields)
    return "–"


def _figure(field: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2g}" if field.endswith("_ms") and value < 10 else f"{value:,.0f}".replace(",", " ")


def _spread(one: Figures) -> str:
    return "–" if one["least"] is None else f"{one['least']:.2f} to {one['most']:.2f}"
