"""``make mutants ROOM=model/backoff MINUTES=10``: generated mutants of a file must fail its tests.

Exits with 1 if a mutant survives that `rooms.toml` does not explain, or if an explanation is out of date. The
mutants come in an order that the seed determines; when the time is over, the rest is left out and counted.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.catalogue import PACKAGE
from tests.mutants.generated.rooms import Change, Explained, Room, explained, rooms, stale
from tests.mutants.page import ROOT
from tests.mutants.runner import PARALLEL, Bench, Verdict

TOOLS = ROOT / "build" / "mutation-tools" / "bin" / "python"
OPERATORS = Path(__file__).with_name("operators.py")
#: Seconds that the tests of one mutant may take. One that takes longer has changed what they see.
LIMIT = 120.0


@dataclass
class Tally:
    """What became of the mutants of a room."""

    killed: int = 0
    explained: list[Change] = field(default_factory=list)
    survived: list[Change] = field(default_factory=list)
    left: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.survived and not self.wrong


def generate(room: Room, tools: Path = TOOLS) -> list[Change]:
    """Returns all mutants of a room."""
    done = subprocess.run(
        [str(tools), str(OPERATORS), str(room.path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"cosmic-ray made no mutants of {room.file}: {done.stderr[-2000:]}")
    return [Change(**one) for one in json.loads(done.stdout)]


def try_out(
    room: Room,
    changes: Sequence[Change],
    bench: Bench,
    seconds: float,
    reasons: Sequence[Explained] = (),
    parallel: int = PARALLEL,
    say: Callable[[str], object] = print,
) -> Tally:
    """Tries out mutants until the time is over."""
    tally = Tally()
    failing = bench.failing_unmutated(room.tests, parallel)
    tally.wrong += [f"{node} does not pass without a mutant: {why}" for node, why in failing.items()]
    if failing:
        return tally
    end = time.monotonic() + seconds
    text = room.path.read_text("utf-8")

    def one(change: Change) -> None:
        if time.monotonic() > end:
            tally.left += 1
            return
        verdict, _ = bench.survives(PACKAGE, room.file, change.applied(text), room.tests)
        if verdict is not Verdict.SURVIVED:
            tally.killed += 1
        elif any(one.fits(room, change) for one in reasons):
            tally.explained.append(change)
        else:
            tally.survived.append(change)
            say(f"SURVIVED  {room.name} {change}")

    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(one, changes))
    if not tally.left:
        tally.wrong += [
            f"no mutant survives by {one.before!r} -> {one.after!r}: take its explanation out"
            for one in reasons
            if one.room == room.name and not any(one.fits(room, change) for change in tally.explained)
        ]
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries out the mutants of the rooms that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.generated", description=__doc__)
    parser.add_argument("room", nargs="*", help="files below src/oxcart, without .py (default: all listed)")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each room (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="of the order (default 1)")
    parser.add_argument("--parallel", type=int, default=PARALLEL, help="processes at a time (default 2)")
    given = parser.parse_args(arguments)
    if unknown := set(given.room) - set(rooms()):
        print(f"no such room: {', '.join(sorted(unknown))}; rooms: {', '.join(rooms())}")
        return 2
    wrong = stale()
    for line in wrong:
        print(f"STALE     {line}")
    holds = not wrong
    for name in given.room or rooms():
        room = rooms()[name]
        changes = generate(room)
        random.Random(given.seed).shuffle(changes)
        bench = Bench(limit=LIMIT)
        tally = try_out(room, changes, bench, 60 * given.minutes, explained(), given.parallel, _say)
        for line in tally.wrong:
            _say(f"WRONG     {name} {line}")
        _say(
            f"{name}: {len(changes)} mutants, {tally.killed} killed, {len(tally.explained)} explained, "
            f"{len(tally.survived)} survived, {tally.left} not tried"
        )
        holds = holds and tally.holds
    return 0 if holds else 1


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
