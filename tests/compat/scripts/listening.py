"""Events of the queue and of the application."""

from __future__ import annotations

import asyncio
from typing import Any

from seen import Ends, error, until

#: Fields whose values are times.
TIMES = ("delay",)


async def main(bullmq: Any, connection: Any) -> Any:
    found: dict[str, Any] = {}
    queue = bullmq.Queue("listening", {"connection": connection})
    events = bullmq.QueueEvents("listening", {"connection": connection, "lastEventId": "0-0"})
    heard: list[Any] = []

    def note(name: str) -> Any:
        def noted(*args: Any) -> None:
            fields = args[0] if isinstance(args[0], dict) else {}
            shown = {key: "a time" if key in TIMES else value for key, value in fields.items()}
            heard.append([name, shown, len(args)])

        return noted

    names = ("added", "waiting", "delayed", "active", "progress", "completed", "failed", "retries-exhausted")
    for name in (
        *names,
        "paused",
        "resumed",
        "drained",
        "removed",
        "duplicated",
        "deduplicated",
        "cleaned",
        "mine",
    ):
        events.on(name, note(name))
    events.on("completed:1", note("completed:1"))

    async def process(job: Any, token: str) -> Any:
        if job.name == "fails":
            raise ValueError("no")
        await job.updateProgress({"at": 5})
        return ["ok"]

    await queue.add("works", {})
    await queue.add("fails", {})
    worker = bullmq.Worker("listening", process, {"connection": connection})
    ends = Ends(worker)
    await ends.wait(2)
    await worker.close()
    await queue.add("later", {}, {"delay": 60_000, "jobId": "own"})
    await queue.add("later", {}, {"jobId": "own"})
    await queue.add("once", {}, {"deduplication": {"id": "d"}})
    await queue.add("once", {}, {"deduplication": {"id": "d"}})
    await queue.pause()
    await queue.resume()
    await queue.remove("own")
    await queue.clean(0, 0, "completed")
    producer = bullmq.QueueEventsProducer("listening", {"connection": connection})
    await producer.publishEvent({"eventName": "mine", "text": "hello", "number": 5})
    found["no name"] = await error(producer.publishEvent({"x": 1}))
    await producer.close()
    await until(lambda: any(one[0] == "mine" for one in heard))
    found["told"] = [one for one in heard if one[0] != "drained"]
    found["drained"] = [one for one in heard if one[0] == "drained"][:1]

    listener = events.on("x", lambda *args: found.setdefault("x", list(args)))
    events.emit("x", 1)
    events.off("x", listener)
    events.emit("x", 2)
    await events.close()
    await events.close()
    found["closed"] = [events.closed, events.running]

    again = bullmq.QueueEvents(
        "listening", {"connection": connection, "autorun": False, "lastEventId": "0-0"}
    )
    seen_again: list[str] = []
    again.on("mine", lambda fields, event_id: seen_again.append(fields["text"]))
    running = asyncio.ensure_future(again.run())
    await until(lambda: bool(seen_again))
    found["twice"] = await error(again.run())
    await again.close()
    await asyncio.wait([running])
    found["again"] = seen_again
    await queue.close()
    return found
