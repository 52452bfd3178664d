"""The report of a checker's rounds, as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from tests.checker.invariants import INVARIANTS
from tests.checker.rounds import Result

_HEAD = "| invariant | violations |"


def summary(result: Result) -> str:
    """Returns one line per round, and the violations below it."""
    ends = sum(result.ends.values())
    counts = Counter(fault.kind for fault in result.faults)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    line = (
        f"seed {result.seed}: {ends} jobs, {sum(result.runs.values())} attempts, {len(result.faults)} faults "
        f"({kinds}), {result.dropped} replies dropped, "
        f"{result.stalls} stalls, {result.seconds:.0f} s: "
    )
    if not result.violations:
        return f"{line}all hold"
    return "\n".join(
        [f"{line}{len(result.violations)} VIOLATIONS", *(f"  {one}" for one in result.violations[:40])]
    )


def report(results: Sequence[Result]) -> str:
    """Returns a table of all rounds and of every invariant, in Markdown."""
    kinds, told, runs, ends = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for result in results:
        kinds.update(fault.kind for fault in result.faults)
        told.update(result.told)
        runs.update(result.runs)
        ends.update(result.ends)
    broken = Counter(one.invariant for result in results for one in result.violations)
    rows = [
        ("rounds", f"{len(results)}, seeds {results[0].seed} to {results[-1].seed}"),
        ("time", f"{sum(result.seconds for result in results) / 60:.1f} minutes"),
        ("replies to clients", _list(told, "acked", "unsure", "refused")),
        ("attempts begun", _list(runs, *sorted(runs))),
        ("jobs at the end", _list(ends, *sorted(ends))),
        ("faults", _list(kinds, *sorted(kinds))),
        ("replies dropped", str(sum(result.dropped for result in results))),
        ("jobs recovered", str(sum(result.stalls for result in results))),
    ]
    lines = ["| what | count |", "|---|---|", *(f"| {what} | {count} |" for what, count in rows), ""]
    lines += [_HEAD, "|---|---|"]
    looked_at = {name: str(broken[name]) for name in dict.fromkeys([*INVARIANTS, *broken])}
    if not any(result.has_lake for result in results):
        looked_at["lake"] = "–"
    lines += [f"| {name} | {count} |" for name, count in looked_at.items()]
    return "\n".join(lines)


def broken_in(text: str) -> set[str]:
    """Returns the invariants that a printed report has violations of."""
    _, _, table = text.rpartition(_HEAD)
    return {
        name for name, count in re.findall(r"^\| ([a-z ]+) \| (\d+) \|$", table, re.MULTILINE) if int(count)
    }


def _list(counts: Counter[str], *names: str) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in names)
