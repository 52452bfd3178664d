"""The job of a Spark application: its own progress and that of stages, which another thread reports."""

from __future__ import annotations

import threading
from typing import Any

from oxcart import Queue, SyncRunningJob, Worker
from oxcart.encryption import KeyRing
from oxcart.engine.sync_running import Link
from oxcart.spark.work.job import SparkJob


class Gate:
    """Carries calls to the worker; the first write of progress waits until it is let through."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.reached, self.open = threading.Event(), threading.Event()

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        if method == "update_progress" and not self.reached.is_set():
            self.reached.set()
            assert self.open.wait(30)
        return self._link.call(method, *args, **kwargs)

    def get(self, member: str) -> Any:
        return self._link.get(member)


async def test_stages_do_not_replace_the_progress_of_the_handler(url: str) -> None:
    async with Queue("apps", url=url) as queue:

        @queue.job
        def task(job: SyncRunningJob) -> None:
            gate = Gate(job._link)
            mine = SparkJob(job._job, gate)
            stages = threading.Thread(target=mine.show_stages, args=(10, "stage 1"))
            stages.start()
            assert gate.reached.wait(30)
            handler = threading.Thread(target=mine.update_progress, args=(70,))
            handler.start()
            handler.join(0.2)  # it waits for the stages; without a lock it would be done now
            gate.open.set()
            for one in (stages, handler):
                one.join(30)
            mine.show_end()

        async with Worker(queue).running():
            added = await task.enqueue()
            await added.result(60)
        assert (await added.get()).progress == {"spark": {}, "percent": 70}


async def test_outputs_are_left_out_of_the_log_where_progress_is_sealed(url: str) -> None:
    facts = {"application": "app-1", "metrics": {"stages": 1}, "outputs": ["/data/of-a-subject"]}
    found = {}
    for name, ring in (
        ("plain", None),
        ("sealed", KeyRing({"1": b"k" * 32})),
        ("whole", KeyRing({"1": b"k" * 32}, progress=True)),
    ):
        async with Queue(name, url=url, key_ring=ring) as queue:

            @queue.job
            def task(job: SyncRunningJob) -> list[str]:
                mine = SparkJob(job._job, job._link)
                mine.facts = facts
                return sorted(mine.end_facts())

            async with Worker(queue).running():
                found[name] = await (await task.enqueue()).result(60)
    assert found["plain"] == found["sealed"] == ["application", "metrics", "outputs"]
    assert found["whole"] == ["application", "metrics"]
