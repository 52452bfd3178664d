"""Explores the model, then replays random paths by the real scripts: ``python -m tests.explorer``."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Server
from tests.explorer.explore import explore
from tests.explorer.layout import explore_layouts
from tests.explorer.replay import Replay
from tests.servers import ValkeyServer


def main() -> int:
    """Parses arguments and runs; exits with 1 when an invariant is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.explorer", description=__doc__)
    parser.add_argument("--workers", type=int, default=3, help="how many workers (default: 3)")
    parser.add_argument("--starts", type=int, default=2, help="most starts of each job (default: 2)")
    parser.add_argument("--crashes", type=int, default=1, help="how many workers may die (default: 1)")
    parser.add_argument("--paths", type=int, default=100, help="paths that the scripts replay (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="of the first path (default: 1)")
    arguments = parser.parse_args()
    began = time.monotonic()
    found = explore(arguments.workers, arguments.starts, arguments.crashes)
    print(f"{found} ({time.monotonic() - began:.0f} s)", flush=True)
    layouts = explore_layouts()
    print(layouts, flush=True)
    asyncio.run(_replay(arguments.workers, arguments.paths, arguments.seed))
    return 1 if found.faults or layouts.fault else 0


async def _replay(workers: int, paths: int, seed: int) -> None:
    with ValkeyServer() as server, server.client() as client, server.client(decode_responses=False) as raw:
        broker = BullMQBroker(Server(server.url), "q")
        for number in range(paths):
            client.flushall()
            replay = Replay(client, raw, workers)
            await replay.add(broker)
            replay.walk(random.Random(seed + number), 40)
        await broker.close()
    print(f"{paths} random paths of 40 actions: the scripts do what the model does")


if __name__ == "__main__":
    sys.exit(main())
