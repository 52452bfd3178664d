"""Counts by call stacks, for the flame graphs of docs/performance.md: ``make bench-flames``.

Server: instructions under callgrind, which tells every chain of callers apart, while jobs are added or
claimed and completed. Client: samples of a worker and of a producer by a timer; their shares repeat within a
few percent, also on a shared machine.

    python -m benchmarks.flames [--jobs 1000] [--samples 60000]

A frame has its cost per mille of the whole; frames below 3 per mille are left out. The figures go to
``build/bench-flames.json``, a line per frame: its depth, its cost, its name, and its group in brackets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import TypedDict

from benchmarks import hottest, profile

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "bench-flames.json"
#: How long a chain of callers may be: that of a command called by a script has about 40 functions.
DEEP = 60
#: The least cost of a frame, as a share of the whole.
LEAST = 0.003
#: The function that each stack of a server starts at, and of a client: the event loop.
LOOPS = ("aeMain", "BaseEventLoop._run_once")
#: What the packaged server has no name for: its Lua, and functions of single files.
UNNAMED = "Lua and functions without a name"

Stack = tuple[tuple[str, str], ...]


class Frame(TypedDict):
    """A function in its place: what stands on it are the functions that it called."""

    name: str
    group: str
    cost: float
    under: list[Frame]


def server_stacks(found: Counter[str]) -> Counter[Stack]:
    """Returns costs by stacks, from functions that callgrind names with all their callers."""
    stacks: Counter[Stack] = Counter()
    for name, cost in found.items():
        parts = [part for part in reversed(name.split("'")) if not part.isdigit()]
        frames: list[tuple[str, str]] = []
        for part in parts:
            unnamed = part.startswith("0x")
            frame = (UNNAMED if unnamed else part, "Lua" if unnamed else hottest.thing_of(part))
            if not frames or frames[-1] != frame:
                frames.append(frame)
        stacks[tuple(_from_loop(frames))] += cost
    return stacks


def client_stacks(found: Counter[tuple[CodeType, ...]]) -> Counter[Stack]:
    """Returns samples by stacks."""
    stacks: Counter[Stack] = Counter()
    for codes, samples in found.items():
        frames = [(f"{Path(code.co_filename).stem}.{code.co_qualname}", _room(code)) for code in codes]
        stacks[tuple(_from_loop(frames))] += samples
    return stacks


def tree(stacks: Counter[Stack], least: float = LEAST) -> list[Frame]:
    """Joins stacks that begin alike; returns the outermost frames, the most expensive first."""
    return _under(dict(stacks), sum(stacks.values()), least)


def lines(frames: list[Frame], depth: int = 0) -> Iterator[str]:
    """Writes a tree, a line per frame."""
    for frame in frames:
        yield f"{depth} {frame['cost']} {frame['name']} [{frame['group']}]"
        yield from lines(frame["under"], depth + 1)


def read(written: list[str]) -> list[Frame]:
    """Reads the lines of a tree."""
    top: list[Frame] = []
    places = [top]
    for line in written:
        depth, cost, rest = line.split(" ", 2)
        name, _, group = rest.removesuffix("]").rpartition(" [")
        frame: Frame = {"name": name, "group": group, "cost": float(cost), "under": []}
        places[int(depth)].append(frame)
        places[int(depth) + 1 :] = [frame["under"]]
    return top


def _under(stacks: dict[Stack, int], whole: int, least: float) -> list[Frame]:
    first: dict[tuple[str, str], dict[Stack, int]] = {}
    for stack, cost in stacks.items():
        if stack:
            first.setdefault(stack[0], {})[stack[1:]] = cost + first.get(stack[0], {}).get(stack[1:], 0)
    sums = sorted(((sum(under.values()), frame) for frame, under in first.items()), reverse=True)
    return [
        {
            "name": name,
            "group": group,
            "cost": round(1000 * cost / whole, 1),
            "under": _under(first[name, group], whole, least),
        }
        for cost, (name, group) in sums
        if cost >= least * whole
    ]


def _from_loop(frames: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Leaves out what is around the event loop."""
    at = next((number for number, (name, _) in enumerate(frames) if name.endswith(LOOPS)), -1)
    yield from frames[at + 1 :]


def _room(code: CodeType) -> str:
    parts = Path(code.co_filename).parts
    if "oxcart" in parts and "site-packages" not in parts:
        at = len(parts) - parts[::-1].index("oxcart")
        return parts[at].removesuffix(".py") if at < len(parts) else "oxcart"
    return "asyncio" if "asyncio" in parts else "the rest"


async def measure(jobs: int, samples: int) -> dict[str, list[Frame]]:
    """Returns the trees by what was done."""
    found = {
        f"server-{kind}": tree(server_stacks(functions))
        for kind, functions in (await hottest.count(jobs, f"--separate-callers={DEEP}")).items()
    }
    for kind in ("add", "process"):
        sampled = await profile.sample(samples, adds=kind == "add")
        found[f"client-{kind}"] = tree(client_stacks(sampled.stacks))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1_000, help="jobs that are counted on the server (1000)")
    parser.add_argument("--samples", type=int, default=60_000, help="jobs of the sampled clients (60000)")
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.jobs, arguments.samples))
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps({name: list(lines(frames)) for name, frames in found.items()}))
    for name, frames in found.items():
        print(f"{name}:")
        for frame in frames:
            print(f"{frame['cost'] / 10:>6.1f} %  {frame['name']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
