"""Medians over rounds, tables with ratios, the floors, and `build/bench.json`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.workloads import Round

FIELDS = ("jobs_per_s", "server_us_per_job", "client_us_per_job", "p50_ms", "p99_ms")
_EXTRA = ("script_us_per_job", "calls_per_job")

OURS = "oxcart"
NODE = "node-bullmq"
PYPI = "pypi-bullmq"
DROP_IN = "oxcart-drop-in"


@dataclass(frozen=True)
class Result:
    """The medians of one system on one workload."""

    workload: str
    system: str
    version: str
    rounds: int
    medians: dict[str, float | None]

    def __getitem__(self, field: str) -> float | None:
        return self.medians[field]

    @property
    def title(self) -> str:
        return f"{self.system} {self.version}"

    def facts(self) -> dict[str, Any]:
        """The row of `bench.json`."""
        figures = {field: _rounded(self.medians[field]) for field in FIELDS}
        return {"workload": self.workload, "system": self.system, "version": self.version, **figures}


def make_console() -> Console:
    """Returns a console that does not fold tables where there is no terminal."""
    return Console(highlight=False) if Console().is_terminal else Console(highlight=False, width=130)


def medians(rounds: Iterable[Round]) -> list[Result]:
    """Groups the rounds by workload and system, in the order of their first run."""
    groups: dict[tuple[str, str, str], list[Round]] = {}
    for one in rounds:
        groups.setdefault((one.workload, one.system, one.version), []).append(one)
    results = []
    for (workload, system, version), group in groups.items():
        found: dict[str, float | None] = {}
        for field in (*FIELDS, *_EXTRA):
            values = [value for one in group if (value := getattr(one, field)) is not None]
            found[field] = statistics.median(values) if values else None
        results.append(Result(workload, system, version, len(group), found))
    return results


@dataclass(frozen=True)
class Floor:
    """A bar of the specification: our figure against a peer's, as the median over the rounds of their ratios.

    Within a round the two are measured one after the other. The machine's speed changes figures by half from
    minute to minute, but hardly changes a ratio.

    Attributes:
        bound: The ratio that must be reached, or must not be passed where `at_most`.
    """

    workload: str
    field: str
    peer: str
    version: str
    bound: float
    at_most: bool = False
    #: The peer's workload, if it differs.
    against: str = ""
    #: Which of our APIs.
    ours: str = OURS

    @property
    def words(self) -> str:
        sign = "≤" if self.at_most else "≥"
        whom = f"{self.peer} {self.version}".strip() if self.peer != OURS else f"its own {self.against}"
        face = "" if self.ours == OURS else f"{self.ours}, "
        return f"{face}{self.workload}: {self.field} {sign} {self.bound:g}× {whom}"

    def check(self, rounds: Sequence[Round]) -> Checked:
        """Compares the rounds that have both figures."""
        ours = _figures(rounds, self.workload, self.ours, "", self.field)
        peer = _figures(rounds, self.against or self.workload, self.peer, self.version, self.field)
        ratios = [ours[number] / its for number, its in peer.items() if number in ours]
        if not ratios:
            return Checked(self.words)
        ratio = statistics.median(ratios)
        met = ratio <= self.bound if self.at_most else ratio >= self.bound
        return Checked(self.words, min(ratios), ratio, max(ratios), met)


@dataclass(frozen=True)
class Checked:
    """A floor in words, the least, median and greatest ratio of a round, and whether the median meets it.

    All are None where nothing was measured.
    """

    floor: str
    least: float | None = None
    median: float | None = None
    most: float | None = None
    met: bool | None = None


FLOORS = (
    Floor("process_c100", "jobs_per_s", NODE, "5.62.0", 3.2),
    Floor("process_c100", "jobs_per_s", PYPI, "3.4.4", 25),
    Floor("process_c100", "jobs_per_s", PYPI, "3.4.4", 10, ours=DROP_IN),
    Floor("process_c100", "server_us_per_job", NODE, "5.62.0", 0.33, at_most=True),
    Floor("add_many", "jobs_per_s", NODE, "5.62.0", 4),
    Floor("add", "p50_ms", NODE, "5.62.0", 1.0, at_most=True),
    Floor("add", "p99_ms", NODE, "5.62.0", 1.5, at_most=True),
    Floor("latency", "p50_ms", NODE, "5.62.0", 1.0, at_most=True),
    Floor("latency", "p99_ms", NODE, "5.62.0", 1.5, at_most=True),
    Floor("process_c100_10ms", "jobs_per_s", NODE, "5.62.0", 1.0),
    Floor("process_c100_x2", "jobs_per_s", OURS, "", 1.0, against="process_c100"),
)


def print_results(console: Console, results: Sequence[Result]) -> None:
    """Prints a table per workload; ratios are ours to the peer's, above 1 is more."""
    for workload in dict.fromkeys(result.workload for result in results):
        group = [result for result in results if result.workload == workload]
        ours = next((result for result in group if result.system == OURS), None)
        table = Table(title=f"{workload}, medians of {group[0].rounds} rounds", title_justify="left")
        table.add_column("system")
        columns = [
            field for field in (*FIELDS, *_EXTRA) if any(result[field] is not None for result in group)
        ]
        for field in columns:
            table.add_column(
                field.replace("_per_", "/").replace("_us", " µs").replace("_", " "), justify="right"
            )
        for result in group:
            cells = []
            for field in columns:
                cell = _figure(result[field])
                if ours is not None and result is not ours and ours[field] and result[field]:
                    cell += f"  [dim]{ours[field] / result[field]:.2f}×[/dim]"  # type: ignore[operator]
                cells.append(cell)
            table.add_row(result.title, *cells)
        console.print(table)
    if any(result.system == OURS for result in results):
        console.print("[dim]× : oxcart's figure divided by this system's[/dim]")


def print_floors(console: Console, rounds: Sequence[Round]) -> bool:
    """Prints the ratios of the rounds and which floors are met; returns whether all measured ones are."""
    table = Table(title="Floors: ratios of the rounds", title_justify="left")
    table.add_column("floor")
    for name in ("least", "median", "most"):
        table.add_column(name, justify="right")
    table.add_column("met")
    all_met = True
    for floor in FLOORS:
        one = floor.check(rounds)
        mark = {True: "[green]yes[/green]", False: "[red]NO[/red]", None: "[dim]not measured[/dim]"}[one.met]
        spread = ("" if ratio is None else f"{ratio:.2f}" for ratio in (one.least, one.median, one.most))
        table.add_row(one.floor, *spread, mark)
        all_met = all_met and one.met is not False
    console.print(table)
    return all_met


def page_figures(path: Path) -> dict[str, Any]:
    """Returns what docs/performance.md has of a run: medians, floors, and how much was measured.

    Args:
        path: The file of the medians, with that of the rounds beside it.
    """
    rows = json.loads(path.with_name(path.stem + "-rounds.json").read_text("utf-8"))
    rounds = [Round(**row) for row in rows]
    ours = [one for one in rounds if (one.workload, one.system) == ("process_c100", OURS)]
    wanted = {workload for workload in (one.workload for one in rounds) if not workload.startswith("field_")}
    return {
        "rounds": len(ours),
        "jobs": max((one.jobs for one in ours), default=0),
        "results": [row for row in json.loads(path.read_text("utf-8")) if row["workload"] in wanted],
        "floors": [asdict(floor.check(rounds)) for floor in FLOORS],
    }


def write(
    path: Path, results: Sequence[Result], rounds: Sequence[Round], *, beside: Container[str] | None = None
) -> None:
    """Writes the medians, and beside them every round.

    Args:
        path: The file of the medians.
        results: The medians.
        rounds: What they are the medians of.
        beside: Workloads whose records are replaced while the others stay; None replaces the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    every = path.with_name(path.stem + "-rounds.json")
    for file, rows in (
        (path, [result.facts() for result in results]),
        (every, [one.facts() for one in rounds]),
    ):
        kept = []
        if beside is not None and file.exists():
            kept = [row for row in json.loads(file.read_text()) if row["workload"] not in beside]
        file.write_text(json.dumps(kept + rows, indent=1) + "\n")


def _figures(
    rounds: Sequence[Round], workload: str, system: str, version: str, field: str
) -> dict[int, float]:
    """Returns a system's result on a workload by the number of the round."""
    return {
        one.number: value
        for one in rounds
        if (one.workload, one.system) == (workload, system)
        and version in ("", one.version)
        and (value := getattr(one, field))
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.3f}"
