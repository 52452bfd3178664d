"""``make conformance-mutants``: exits with 0 if the tests of every row find every fault of that row."""

from __future__ import annotations

import argparse
import sys

from tests.mutants.catalogue import faults, mutants
from tests.mutants.page import rows
from tests.mutants.runner import LIMIT, PARALLEL, Bench, Verdict, chosen, run, table


def main() -> int:
    """Runs the mutants that the command line selects."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", help="part of a name, row or file; * is allowed")
    parser.add_argument("--parallel", type=int, default=PARALLEL, help="processes at a time (default 2)")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds per mutant (default 600)")
    given = parser.parse_args()
    known, wanted = rows(), chosen(mutants(), given.only)
    stale = faults(mutants(), known)
    for line in stale:
        print(f"{Verdict.STALE}: {line}", flush=True)
    if not wanted:
        print(f"no mutant fits {given.only!r}")
        return 2
    results = run(
        Bench(limit=given.limit), wanted, known, given.parallel, say=lambda line: print(line, flush=True)
    )
    print(table(results, known))
    return int(bool(stale) or any(one.verdict is not Verdict.CAUGHT for one in results))


if __name__ == "__main__":
    sys.exit(main())
