"""The deliberate differences of docs/migrating-from-bullmq.md, run on either package.

python decided.py <package> <port>

Runs in the environment of either package.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "scripts"))

from seen import caught, until


async def main(bullmq: Any, connection: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        await bullmq.Queue("", {"connection": connection}).close()
        found["an empty queue name"] = "accepted"
    except ValueError:
        found["an empty queue name"] = "refused"

    queue = bullmq.Queue("q", {"connection": connection})
    found["a set"] = await caught(queue.add("set", {"x": {1}}), TypeError)
    await queue.drain()

    async def fail(job: Any, token: str) -> None:
        raise ValueError("no")

    worker = bullmq.Worker("q", fail, {"connection": connection, "name": "w"})
    found["the name of a connection"] = worker.clientName
    job = await queue.add("float", {}, {"attempts": 2, "backoff": 60_000.5})
    ended: list[str] = []
    worker.on("failed", lambda job, error: ended.append("failed"))
    worker.on("error", lambda error, *rest: ended.append("error"))
    await until(lambda: bool(ended))
    found["a float backoff"] = [ended[0], await job.getState()]
    await worker.close(True)
    await queue.client.delete(queue.toKey(f"{job.id}:lock"))
    await queue.obliterate(True)

    starts = await queue.add("starts", {})
    hand = bullmq.Worker("q", None, {"connection": connection})
    taken = await hand.getNextJob("t")
    await taken.moveToFailed(ValueError("no"), "t")
    await starts.retry("failed", {"resetAttemptsStarted": True})
    found["starts on the server"] = await queue.client.hget(queue.toKey(starts.id), "ats")
    found["starts of the job"] = (await queue.getJob(starts.id)).attemptsStarted
    await hand.close()
    await queue.close()
    return found


if __name__ == "__main__":
    package = importlib.import_module(sys.argv[1])
    print(json.dumps(asyncio.run(main(package, {"host": "127.0.0.1", "port": int(sys.argv[2])}))))
