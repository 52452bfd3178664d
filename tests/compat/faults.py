"""The faults of PyPI bullmq that docs/migrating-from-bullmq.md lists, run on either package.

python faults.py <package> <port>

Prints for each whether it is there. Runs in the environment of either package.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "scripts"))

from seen import error, until


async def main(bullmq: Any, connection: Any) -> dict[str, bool]:
    found: dict[str, bool] = {}
    made: list[Any] = []

    def make(kind: str, *args: Any, **opts: Any) -> Any:
        made.append(getattr(bullmq, kind)(*args, {"connection": connection, **opts}))
        return made[-1]

    queue = make("Queue", "q")
    try:
        queue.on("error", print)
        found["a queue cannot have listeners"] = False
    except AttributeError:
        found["a queue cannot have listeners"] = True
    found["no scheduler is an error"] = (await error(queue.getJobScheduler("none")))[0] != "nothing"
    await queue.add("a", {})
    found["clean knows no waiting"] = await queue.clean(0, 0, "waiting") == []
    await queue.upsertJobScheduler("s", {"pattern": "0 12 * * *"})
    found["a zone is not written down"] = "tz" not in await queue.getJobScheduler("s")

    # a listener that raises
    listened = make("Queue", "listened")

    async def fine(job: Any, token: str) -> str:
        return "fine"

    def breaks(*args: Any) -> None:
        raise RuntimeError("the listener's own")

    errors: list[str] = []
    worker = make("Worker", "listened", fine, name="one")
    worker.on("completed", breaks)
    worker.on("error", lambda raised, *rest: errors.append(str(raised)))
    await listened.add("a", {})
    await until(lambda: bool(errors))
    found["a listener's error is taken for the job's"] = errors[0] != "the listener's own"
    found["a worker is listed twice"] = await listened.get_workers_count() > 1

    # calls that leave a job locked and active
    stuck = make("Queue", "stuck")
    ran: list[str] = []

    async def process(job: Any, token: str) -> None:
        ran.append(job.name)
        if job.name == "moved":
            raise bullmq.DelayedError
        if job.name == "strategy":
            raise ValueError("again")
        await asyncio.sleep(3600)

    worker = make("Worker", "stuck", process, concurrency=3)
    ended: list[Any] = []
    worker.on("error", lambda *args: ended.append("error"))
    worker.on("failed", lambda *args: ended.append("failed"))
    moved = await stuck.add("moved", {})
    unknown = await stuck.add(
        "strategy", {}, {"attempts": 2, "backoff": {"type": "unheard-of", "delay": 60_000}}
    )
    held = await stuck.add("held", {})
    await until(lambda: len(ran) == 3 and bool(ended))
    try:  # never with theirs; ours may need a while on a busy machine
        await until(lambda: state_is(stuck, moved.id, "delayed"), 2 if bullmq.__name__ == "bullmq" else 20)
        found["DelayedError without a move leaves it active"] = False
    except TimeoutError:
        found["DelayedError without a move leaves it active"] = True
    found["an unknown backoff leaves it active"] = await stuck.getJobState(unknown.id) == "active"
    await error(stuck.obliterate())
    found["a refused obliterate leaves it paused"] = await stuck.isPaused()
    await stuck.resume()
    await worker.close(force=True)
    found["a forced close leaves it active"] = await stuck.getJobState(held.id) == "active"
    for one in reversed(made):
        await one.close()
    return found


async def state_is(queue: Any, job_id: str, state: str) -> bool:
    return bool(await queue.getJobState(job_id) == state)


if __name__ == "__main__":
    package = importlib.import_module(sys.argv[1])
    print(json.dumps(asyncio.run(main(package, {"host": "127.0.0.1", "port": int(sys.argv[2])}))))
