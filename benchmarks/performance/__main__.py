"""``make performance``: writes the page and its charts; ``--check`` exits 1 if they are not current.

    python -m benchmarks.performance [--take growth hottest …] [--machine TEXT] [--commit REV] [--check]

It also writes the table of README.md. ``--take`` first copies the figures of a benchmark from ``build`` into
docs/performance.json, with the commit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.performance.page import CHARTS, PAGE, charts, page
from benchmarks.performance.table import Figures
from benchmarks.performance.timed import in_readme
from benchmarks.report import page_figures

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "performance.json"
#: What the benchmarks write, by the name of their part of the page.
SOURCES = {
    "time": "build/bench.json",
    "instructions": "build/bench-instructions.json",
    "growth": "build/bench-growth.json",
    "hottest": "build/bench-hottest.json",
    "flames": "build/bench-flames.json",
    "soak": "build/soak.json",
}


def read(path: Path = DATA) -> Figures:
    """Reads the figures."""
    figures: Figures = json.loads(path.read_text("utf-8"))
    return figures


def take(figures: Figures, names: list[str], machine: str, revision: str = "HEAD", root: Path = ROOT) -> None:
    """Copies the figures of benchmarks, with the commit and the machine that they come from."""
    commit = _git("log", "-1", "--format=%h", revision, root=root)
    day = _git("log", "-1", "--format=%cs", revision, root=root)
    for name in names:
        source = root / SOURCES[name]
        found: Any = page_figures(source) if name == "time" else json.loads(source.read_text("utf-8"))
        figures[name] = {"commit": commit, "day": day, "machine": machine, "figures": found}


def files(figures: Figures) -> dict[str, str]:
    """Returns the text of the page and of its charts by their paths."""
    drawn = {f"{CHARTS}/{name}.svg": text for name, text in charts(figures).items()}
    return {PAGE: page(figures), **drawn}


def outdated(root: Path = ROOT) -> list[str]:
    """Returns the files that the figures no longer give, and charts that the page no longer has."""
    made = files(read(root / "docs" / "performance.json"))
    found = [path for path, text in made.items() if _text(root / path) != text]
    there = {f"{CHARTS}/{one.name}" for one in (root / CHARTS).glob("*.svg")}
    return found + sorted(there - set(made))


def _text(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None


def _git(*words: str, root: Path) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.performance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--take", nargs="+", choices=list(SOURCES), default=[])
    parser.add_argument("--machine", default="two cores, shared with other work")
    parser.add_argument("--commit", default="HEAD", help="that the figures were measured at (HEAD)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    given = parser.parse_args(arguments)
    if given.check:
        for path in outdated():
            print(f"{path} is not what docs/performance.json gives: run make performance")
        return 1 if outdated() else 0
    figures = read()
    take(figures, given.take, given.machine, given.commit)
    DATA.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", "utf-8")
    made = files(figures)
    (ROOT / CHARTS).mkdir(exist_ok=True)
    for old in (ROOT / CHARTS).glob("*.svg"):
        if f"{CHARTS}/{old.name}" not in made:
            old.unlink()
    made["README.md"] = in_readme((ROOT / "README.md").read_text("utf-8"), figures)
    for path, text in made.items():
        (ROOT / path).write_text(text, "utf-8")
    print(f"{PAGE}, {len(made) - 2} charts and the table of README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
