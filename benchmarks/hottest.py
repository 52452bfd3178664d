"""Counts where the server's instructions go while jobs are added and processed: ``make bench-hottest``.

The server runs under valgrind's callgrind, which counts each function by itself. Functions are joined to the
things that they belong to, so that the list can be read: Lua's interpreter, memory, streams and so on.

    python -m benchmarks.hottest [--jobs 2000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.servers import ValkeyServer

from benchmarks import growth
from benchmarks.growth import complete, counting_server, fill, row
from oxcart import Queue

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "bench-hottest.json"
#: What a function belongs to; the first that fits.
THINGS = (
    # The packaged server has symbols of its own functions, and none of the Lua that is linked to it.
    ("Lua itself: interpreter, tables, strings", r"^0x"),
    ("Lua's libraries in C: cmsgpack, cjson", r"^mp_|^json_|cjson|strbuf|cmsgpack|^luaopen"),
    ("between Lua and the commands", r"^VM_|lua|[sS]cript|redisProtocol|RESP|ldb|parseReply|resp"),
    (
        "memory",
        r"^_int_|malloc|zfree|_free$|extend_to_usable|^free|realloc|calloc|unlink_chunk|consolidate|^sysmalloc|^zlibc|arena",
    ),
    ("streams", r"[sS]tream|^rax|xadd"),
    (
        "hash tables",
        r"^dict|hashtable|siphash|murmur|[bB]ucket|kvstore|entry|lookupKey|^db[A-Z]|getKey|hashType",
    ),
    ("small lists and hashes", r"^_?lp|listpack|quicklist|^_quick|^list|hashTypeSet"),
    ("sorted sets", r"^zs|zset|zadd|zrem|zcount|skiplist"),
    (
        "strings, numbers and objects",
        r"sds|ll2string|string2|d2string|double|strto|printf|digits|strEnc|[oO]bject|RefCount|_mpn",
    ),
    (
        "copies and comparisons of memory",
        r"mem(cpy|move|set|cmp|chr)|strlen|strcmp|strn|strchr|strcase|tolower",
    ),
    ("replies", r"addReply|[rR]eply|write|copyAvoid|clientHas"),
    (
        "commands and their checks",
        r"^call$|[cC]ommand|ACL|prepare|notify|signal|alsoProp|propagate|expire|mstime",
    ),
    ("network and events", r"read|^ae|[cC]lient|net|conn|process|poll|epoll"),
)
_NAME = re.compile(r"fn=\((\d+)\)(?: (.*))?$")


def functions(text: str) -> Counter[str]:
    """Returns the instructions of every function by itself, from a file of callgrind."""
    names: dict[str, str] = {}
    found: Counter[str] = Counter()
    name, is_call = "", False
    for line in text.splitlines():
        if named := _NAME.match(line):
            if named[2]:
                names[named[1]] = named[2]
            name = names[named[1]]
        elif called := re.match(r"cfn=\((\d+)\)(?: (.*))?$", line):
            if called[2]:
                names[called[1]] = called[2]
        elif line.startswith("calls="):
            is_call = True  # the next line is the cost of the called function
        elif line[:1] in "0123456789+-*" and name:
            parts = line.split()
            if not is_call and len(parts) == 2:
                found[name] += int(parts[1])
            is_call = False
    return found


def joined(found: Counter[str]) -> Counter[str]:
    """Returns the instructions of every thing."""
    things: Counter[str] = Counter()
    for name, cost in found.items():
        things[thing_of(name.partition("'")[0])] += cost  # one that calls itself has a count for each depth
    return things


def thing_of(name: str) -> str:
    """Returns what a function belongs to."""
    return next((thing for thing, pattern in THINGS if re.search(pattern, name)), "the rest")


async def count(jobs: int, *options: str) -> dict[str, Counter[str]]:
    """Counts the functions of a run of adds, and of one in which the jobs are claimed and completed.

    Args:
        jobs: How many jobs.
        options: Options of callgrind.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ValkeyServer(binary=counting_server(folder, *options), hz=1, dynamic_hz=False) as server:
            counter = growth.Counter(server, folder)
            async with Queue("counted", url=server.url, add_timeout=600) as queue:
                await queue.add_many([row("warm")] * growth.BATCH)
                await complete(queue, growth.BATCH)
                async with counter.counts("add"):
                    await fill(queue, (row("x" * 80) for _ in range(jobs)))
                async with counter.counts("process"):
                    await complete(queue, jobs)
        return {kind: functions(_dump(folder, kind)) for kind in ("add", "process")}


async def measure(jobs: int) -> dict[str, Any]:
    """Returns the costs per job of both runs by things and by functions."""
    return {
        kind: {
            "instructions": round(sum(whole.values()) / jobs),
            "things": {thing: round(cost / jobs) for thing, cost in joined(whole).most_common()},
            "functions": {name: round(cost / jobs) for name, cost in whole.most_common(30)},
        }
        for kind, whole in (await count(jobs)).items()
    }


def _dump(folder: Path, name: str) -> str:
    for path in folder.glob("callgrind.out.*"):
        text = path.read_text()
        if re.search(rf"^desc: Trigger:.* {name}$", text, re.MULTILINE):
            return text
    raise SystemExit(f"callgrind wrote no counts of {name}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2_000, help="jobs that are counted (2000)")
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.jobs))
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(found, indent=2))
    for kind, one in found.items():
        print(f"{kind}: {one['instructions']:,} instructions per job")
        for thing, cost in one["things"].items():
            print(f"{cost:>10,}  {thing}")
        print("functions by themselves:")
        for name, cost in list(one["functions"].items())[:15]:
            print(f"{cost:>10,}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
