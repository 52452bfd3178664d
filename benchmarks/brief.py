"""Measures how long small workers take to start, run a few jobs and close, beside PyPI's bullmq.

python -m benchmarks.brief [--rounds N] [--jobs N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

from tests.servers import ValkeyServer

from benchmarks.systems import PEERS, pypi_environment


def measure(command: list[str], package: str, rounds: int, jobs: int) -> list[tuple[float, float, float]]:
    """Returns the ms of each round: to create the worker, to run its jobs, to close it."""
    with ValkeyServer() as server:
        arguments = [package, str(server.port), str(rounds), str(jobs)]
        done = subprocess.run(
            [*command, str(PEERS / "brief.py"), *arguments], stdout=subprocess.PIPE, text=True, check=True
        )
    return [(made, ran, closed) for made, ran, closed in json.loads(done.stdout)]


def main() -> None:
    """Prints the median of each part, and of the whole, for both packages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=5)
    asked = parser.parse_args()
    systems = {
        "PyPI bullmq": ([str(pypi_environment() / "bin" / "python")], "bullmq"),
        "oxcart drop-in": ([sys.executable, "-P"], "oxcart.compat.bullmq"),
    }
    print(f"{'ms, median':<16}{'start':>8}{'jobs':>8}{'close':>8}{'all':>8}")
    for name, (command, package) in systems.items():
        rows = measure(command, package, asked.rounds, asked.jobs)
        parts = [statistics.median(row[part] for row in rows) for part in range(3)]
        whole = statistics.median(sum(row) for row in rows)
        print(f"{name:<16}" + "".join(f"{value:8.1f}" for value in (*parts, whole)))


if __name__ == "__main__":
    main()
