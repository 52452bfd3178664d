"""The checker from the command line: ``python -m tests.checker --seed 7 --minutes 60``.

It makes rounds with one seed after another until the time is over, and exits with 1 when an invariant is
broken. The failing round is then shrunk to its shortest schedule of faults, and the command that repeats it
is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shlex
import sys
import tempfile
import time
from pathlib import Path

from tests.checker import clock, disk, lake, nemesis
from tests.checker.nemesis import Fault, fails_over, make_faults
from tests.checker.report import report, summary
from tests.checker.rounds import PATIENCE, Result, run
from tests.checker.shrinker import shrink


def main() -> int:
    """Parses arguments and runs."""
    parser = argparse.ArgumentParser(prog="python -m tests.checker", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="of all rounds (default: 2)")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="during which a round adds jobs (default: 30)"
    )
    parser.add_argument("--seed", type=int, help="of the first round (default: a random one)")
    parser.add_argument("--rounds", type=int, help="exactly so many, instead of minutes")
    parser.add_argument("--peers", default="node5,node6", help="which of Node's take part; empty for none")
    parser.add_argument("--faults", help="a schedule instead of that of the seed, as JSON")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE, help="seconds to wait for progress at the end"
    )
    parser.add_argument("--only", default="", help="the only queue and kind of jobs, as ours/slow")
    parser.add_argument(
        "--lake",
        choices=("some", "all", "none"),
        default="some",
        help="rounds in which the pipeline takes part (default: every third)",
    )
    parser.add_argument("--no-shrink", action="store_true", help="only report a failing round")
    parser.add_argument("--keep", type=Path, help="keep records and logs in this folder")
    parser.add_argument("--report", type=Path, help="write the report to this file, as Markdown")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oxcart-checker-") as temporary:
        return asyncio.run(_rounds(arguments, arguments.keep or Path(temporary)))


async def _rounds(arguments: argparse.Namespace, folder: Path) -> int:
    for reason in filter(None, (clock.missing(), lake.missing(), disk.missing())):
        print(f"left out: {reason}", flush=True)
    seed = random.SystemRandom().randrange(10_000) if arguments.seed is None else arguments.seed
    named = tuple(peer for peer in arguments.peers.split(",") if peer)
    end = time.monotonic() + 60 * arguments.minutes
    results: list[Result] = []
    while not results or (len(results) < arguments.rounds if arguments.rounds else time.monotonic() < end):
        # Every third round is ours alone, because some faults are too much for peers.
        peers = named if seed % 3 or arguments.faults else ()
        given = nemesis.read(arguments.faults) if arguments.faults else None
        chosen = arguments.lake == "all" or (arguments.lake == "some" and seed % 3 == 1)
        has_lake = chosen and not lake.missing()
        faults = given
        if faults is None:
            able = {"has_tailer": has_lake, "can_step": not clock.missing(), "has_disk": not disk.missing()}
            able["has_replica"] = fails_over(seed)
            faults = make_faults(seed, arguments.seconds, peers, **able)
        again = _Again(folder, seed, peers, has_lake, arguments)
        results.append(await again.run(faults))
        print(summary(results[-1]), flush=True)
        if results[-1].violations:
            if not arguments.no_shrink:
                await again.shrink(results[-1])
            break
        seed += 1
    text = report(results)
    print(f"\n{text}")
    if arguments.report:
        arguments.report.write_text(text + "\n")
    return 1 if results[-1].violations else 0


class _Again:
    """Repeats a round with other faults."""

    def __init__(
        self, folder: Path, seed: int, peers: tuple[str, ...], has_lake: bool, options: argparse.Namespace
    ) -> None:
        self._folder = folder
        self._seed = seed
        self._seconds: float = options.seconds
        self._peers = peers
        self._patience: float = options.patience
        self._only: str = options.only
        self._has_lake = has_lake
        self._runs = 0

    async def run(self, faults: list[Fault]) -> Result:
        self._runs += 1
        folder = self._folder / f"seed-{self._seed}-{self._runs}"
        folder.mkdir(parents=True)
        told = (self._seed, self._seconds, faults, self._peers, self._patience, self._only, self._has_lake)
        return await run(folder, *told)

    async def shrink(self, failed: Result) -> None:
        async def fails(faults: list[Fault]) -> bool:
            found = await self.run(faults)
            is_same = bool(found.broken & failed.broken)
            print(
                f"  with {len(faults)} of {len(failed.faults)} faults: {'fails' if is_same else 'holds'}",
                flush=True,
            )
            return is_same

        shortest = await shrink(failed.faults, fails)
        print("shortest schedule that fails:", *(f"  {fault}" for fault in shortest), sep="\n")
        command = (
            f"python -m tests.checker --seed {self._seed} --seconds {self._seconds:g} --rounds 1 --no-shrink"
        )
        peers = f" --peers {shlex.quote(','.join(self._peers))} --lake {'all' if self._has_lake else 'none'}"
        peers += f" --only {shlex.quote(self._only)}" if self._only else ""
        print(f"again: {command}{peers} --faults {shlex.quote(nemesis.dump(shortest))}")


if __name__ == "__main__":
    sys.exit(main())
