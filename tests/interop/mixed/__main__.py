"""The mixed fleet from the command line: `python -m tests.interop.mixed --jobs 20000`.

Exits with 1 when a check failed. With `--without-us` only the peers run, and they are killed instead of our
workers: a failure is then theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.interop.mixed.fleet import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.mixed", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000, help="about how many (default: 20000)")
    parser.add_argument("--kills", type=int, default=10, help="how many workers are killed (default: 10)")
    parser.add_argument("--cuts", type=int, default=0, help="how many of their answers are lost (default: 0)")
    parser.add_argument("--lease", type=int, default=5_000, help="of those, in ms (default: 5000)")
    parser.add_argument("--seed", type=int, default=562, help="of the plan (default: 562)")
    parser.add_argument("--without-us", action="store_true", help="the peers alone, to see what is theirs")
    parser.add_argument("--keep", type=Path, help="keep diary and logs in this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oxcart-mixed-") as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        result = asyncio.run(
            run(
                folder,
                arguments.jobs,
                seed=arguments.seed,
                kills=arguments.kills,
                cuts=arguments.cuts,
                lease=arguments.lease,
                without_us=arguments.without_us,
            )
        )
    print(result)
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
