"""The lifecycle of a queue with one kind of client: all operations of producer, operator and worker."""

from __future__ import annotations

from typing import Any, Protocol

from oxcart import Queue
from tests.interop.obedient import LIMIT, obeying
from tests.nodes import NodeDriver


class Side(Protocol):
    """One of the two clients, with the operations of the lifecycle."""

    async def add(self, name: str, data: Any = None, **options: Any) -> str: ...
    async def do(self, verb: str, *args: Any) -> None: ...
    async def work(self, ends: int) -> None: ...


async def live(side: Side) -> None:
    """Run the lifecycle once, in about a second."""
    await side.add("plain", {"result": 1, "progress": 50, "log": "a row"}, jobId="plain")
    await side.add("again", {}, jobId="plain")
    await side.add("front", {"result": {"a": [1]}}, lifo=True)
    await side.add("by priority", {}, priority=3)
    await side.add("later", {}, delay=20)
    await side.add("much later", {}, delay=3_600_000, jobId="hurried")
    await side.do("promote", "hurried")
    await side.add("much later", {}, delay=3_600_000, jobId="put off")
    await side.do("changeDelay", "put off", 7_200_000)
    await side.add("not wanted", {}, jobId="unwanted")
    await side.do("remove", "unwanted")
    await side.add("changed", {}, jobId="changed")
    await side.do("changePriority", "changed", 5)
    await side.do("updateData", "changed", {"result": "changed"})
    await side.do("pause")
    await side.add("while paused", {})
    await side.do("resume")
    await side.add("fails twice", {"fail": 2}, attempts=3, backoff={"type": "fixed", "delay": 1})
    await side.add("fails", {"fail": 9}, attempts=2, backoff={"type": "fixed", "delay": 1}, jobId="fails")
    await side.add("given up", {"unrecoverable": True}, attempts=3, jobId="given up")
    await side.add("forgotten", {"result": 1}, removeOnComplete=True)
    await side.work(11)
    await side.do("remove", "put off")
    await side.do("retry", "fails", "failed")
    await side.do("retry", "plain", "completed")
    await side.work(2)


class NodeAlone:
    def __init__(self, node: NodeDriver, queue: str) -> None:
        self._node = node
        self._queue = queue

    async def add(self, name: str, data: Any = None, **options: Any) -> str:
        added: str = await self._node.call("add", queue=self._queue, name=name, data=data, opts=options)
        return added

    async def do(self, verb: str, *args: Any) -> None:
        names = {
            "changeDelay": ("jobId", "delay"),
            "changePriority": ("jobId", "priority"),
            "updateData": ("jobId", "data"),
            "retry": ("jobId", "state"),
        }
        named = dict(zip(names.get(verb, ("jobId",)), args, strict=False))
        await self._node.call(verb, queue=self._queue, **named)

    async def work(self, ends: int) -> None:
        call, handle = self._node.call, self._queue
        await call("workerStart", handle=handle, queue=self._queue, options={"name": "w"})
        await call("workerWait", handle=handle, finished=ends, limit=LIMIT)
        await call("workerStop", handle=handle)


class OursAlone:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def add(self, name: str, data: Any = None, **options: Any) -> str:
        names = {"jobId": "job_id", "removeOnComplete": "remove_on_complete"}
        given = {names.get(option, option): value for option, value in options.items()}
        if "delay" in given:
            given["delay"] = f"{given['delay']}ms"
        return (await self._queue.add(name, data, **given)).id

    async def do(self, verb: str, *args: Any) -> None:
        if verb in ("pause", "resume"):
            await getattr(self._queue, verb)()
            return
        job = self._queue.jobs.handle(args[0])
        match verb:
            case "changeDelay":
                await job.change_delay(f"{args[1]}ms")
            case "changePriority":
                await job.change_priority(args[1])
            case "updateData":
                await job.update_data(args[1])
            case _:
                await getattr(job, verb)()

    async def work(self, ends: int) -> None:
        async with self._queue.events() as events, obeying(self._queue, name="w"):
            while ends:
                ends -= sum(event.name in ("completed", "failed") for event in await events.read(LIMIT))
