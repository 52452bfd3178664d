"""The queue without `await`: the same face, safe from many threads, after a fork and at exit."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

import pytest
import redis

import oxcart
import oxcart.events
from oxcart import Worker, sync
from oxcart.model.errors import JobFailed, JobNotFound, ResultTimeout, ValidationError
from tests.servers import wait_until


@pytest.fixture
def queue(url: str) -> Iterator[sync.Queue]:
    with sync.Queue("q", url=url) as queue:
        yield queue


@pytest.fixture
def working(queue: sync.Queue) -> Iterator[None]:
    """A worker in a thread of its own, as a second process would be."""
    worker = Worker(queue, concurrency=4)
    ended = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        await worker.run()

    def run() -> None:
        asyncio.run(main())
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    wait_until(worker.started.is_set, "the worker takes jobs")
    yield
    loops[0].call_soon_threadsafe(worker.stop)
    assert ended.wait(60)


#: Python 3.12 warns of every fork of a process with threads, which is what these scripts are about.
WARNINGS = ["-W", "error::ResourceWarning", "-W", "ignore:This process:DeprecationWarning"]


def run_script(code: str, url: str, *, timeout: float = 60) -> str:
    done = subprocess.run(
        [sys.executable, *WARNINGS, "-c", textwrap.dedent(code)],
        env={**os.environ, "OXCART_URL": url},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


class TestFace:
    def test_has_every_method_of_the_asynchronous_queue(self) -> None:
        for ours, theirs in (
            (sync.Queue, oxcart.Queue),
            (sync.JobHandle, oxcart.JobHandle),
            (sync.QueueEvents, oxcart.events.QueueEvents),
        ):
            public = {name for name in vars(theirs) if not name.startswith("_")}
            assert not public - set(dir(ours)), ours

    @pytest.mark.parametrize(
        "name", ["add", "add_many", "jobs.get", "jobs.get_many", "jobs.list", "jobs.remove", "jobs.retry"]
    )
    def test_takes_the_same_arguments(self, name: str) -> None:
        queues = (sync.Queue("q"), oxcart.Queue("q"))
        ours, theirs = (inspect.signature(attrgetter(name)(queue)) for queue in queues)
        assert list(ours.parameters.values()) == list(theirs.parameters.values())

    def test_adds_and_looks(self, queue: sync.Queue) -> None:
        job = queue.add("welcome", {"to": "ada"}, priority=3)
        assert job.created
        assert (job.name, job.state()) == ("welcome", "prioritized")
        assert job.get().data == {"to": "ada"}
        assert queue.jobs.get(job.id) == job.get()
        assert queue.jobs.get_many([job.id, "none"])[1] is None
        assert queue.counts()["prioritized"] == 1
        assert [one.id for one in queue.jobs.list("prioritized")] == [job.id]
        assert queue.jobs.handle(job.id).state() == "prioritized"
        job.remove()
        with pytest.raises(JobNotFound):
            job.get()

    def test_adds_many_from_a_generator_in_the_callers_thread(self, queue: sync.Queue) -> None:
        threads: set[threading.Thread] = set()

        def rows() -> Iterator[tuple[str, int]]:
            for number in range(300):
                threads.add(threading.current_thread())
                yield "n", number

        jobs = queue.add_many(rows(), attempts=1)
        assert len({job.id for job in jobs}) == 300
        assert threads == {threading.current_thread()}
        assert queue.counts()["waiting"] == 300

    def test_steers(self, queue: sync.Queue) -> None:
        queue.pause()
        assert queue.is_paused()
        queue.resume()
        assert not queue.is_paused()
        job = queue.add("later", delay=60)
        job.change_delay(120)
        job.change_priority(5)
        job.update_data({"x": 1})
        job.update_progress(50)
        assert job.log("one", "two") == 2
        assert job.logs() == ["one", "two"]
        now = job.get()
        assert (now.delay, now.priority, now.data, now.progress) == (120_000, 5, {"x": 1}, 50)
        job.promote()
        assert job.state() == "prioritized"

    def test_refuses_bad_input_as_the_asynchronous_one(self, queue: sync.Queue) -> None:
        with pytest.raises(ValidationError, match="attempts must be at least 1, got 0"):
            queue.add("n", attempts=0)

    def test_reads_events(self, queue: sync.Queue) -> None:
        with queue.events(names=["added"]) as events:
            job = queue.add("n")
            assert [event.job_id for event in events.read(5)] == [job.id]
            position = events.position
        second = queue.add("n")
        with queue.events(since=position, names=["added"]) as events:
            assert next(iter(events)).job_id == second.id


class TestTasks:
    @pytest.mark.usefixtures("working")
    def test_result_of_a_task(self, queue: sync.Queue) -> None:
        @queue.job
        def double(number: int) -> int:
            return number * 2

        @queue.job(attempts=1, name="broken")
        async def fails() -> None:
            raise ValueError("no")

        assert double(4) == 8
        assert double.name == "double"
        assert double.payload(3) == {"number": 3}
        assert double.enqueue(21).result(timeout=20) == 42
        assert double.using(remove_on_complete=True).enqueue(number=1).result(timeout=20) == 2
        with pytest.raises(JobFailed, match="no"):
            fails.enqueue().result(timeout=20)

    def test_checks_the_signature_before_anything_is_written(
        self, queue: sync.Queue, store: redis.Redis
    ) -> None:
        @queue.job
        def double(number: int) -> int:
            return number * 2

        with pytest.raises(ValidationError, match="does not fit"):
            double.enqueue("many")  # type: ignore[arg-type]
        assert store.dbsize() == 0

    def test_retry_runs_a_finished_job_again(self, queue: sync.Queue, working: None) -> None:
        ran: list[int] = []

        @queue.job
        def count() -> int:
            ran.append(1)
            return len(ran)

        job = count.enqueue()
        assert job.result(timeout=20) == 1
        job.retry(reset=True)
        wait_until(lambda: len(ran) == 2, "the second run")

    @pytest.mark.usefixtures("working")
    def test_handlers_may_use_the_queue_themselves(self, queue: sync.Queue) -> None:
        @queue.job
        def child(number: int) -> int:
            return number + 1

        @queue.job
        def parent(number: int) -> int:
            return child.enqueue(number).result(timeout=20) * 2

        @queue.job
        async def asynchronous_parent(number: int) -> str:
            return child.enqueue(number).id

        assert parent.enqueue(20).result(timeout=20) == 42
        added = asynchronous_parent.enqueue(1).result(timeout=20)
        assert queue.jobs.handle(added).result(timeout=20) == 2

    def test_result_timeout(self, queue: sync.Queue) -> None:
        job = queue.add("nobody")
        with pytest.raises(ResultTimeout, match=r"not ended within 0\.01 s"):
            job.result(timeout="10ms")


class TestThreads:
    def test_one_background_thread_serves_all(self, queue: sync.Queue, url: str) -> None:
        def use(number: int) -> str:
            return queue.add("n", number).id

        with ThreadPoolExecutor(16) as pool, sync.Queue("other", url=url) as other:
            ids = list(pool.map(use, range(400)))
            other.add("n")
        assert len(set(ids)) == 400
        assert queue.counts()["waiting"] == 400
        assert [t.name for t in threading.enumerate()].count("oxcart-sync") == 1

    def test_threads_share_one_connection(self, queue: sync.Queue, store: redis.Redis) -> None:
        before = len(store.client_list())
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda number: queue.add("n", number), range(200)))
        assert len(store.client_list()) <= before + 1

    def test_a_call_out_of_the_background_loop_is_refused(self, queue: sync.Queue) -> None:
        async def inside() -> None:
            queue.add("n")

        with pytest.raises(RuntimeError, match="wait for itself"):
            queue.run(inside())

    async def test_works_beside_a_running_loop(self, queue: sync.Queue) -> None:
        assert queue.add("n").created

    def test_a_forgotten_queue_closes_its_connection(self, url: str, store: redis.Redis) -> None:
        before = len(store.client_list())
        sync.Queue("forgotten", url=url).add("n")
        gc.collect()
        wait_until(lambda: len(store.client_list()) <= before, "the connection is closed")

    def test_a_forgotten_lane_closes_the_connection_of_its_queue(self, url: str, store: redis.Redis) -> None:
        before = len(store.client_list())
        job = sync.Queue("forgotten", url=url).add("n", target="all;c=gpu")
        gc.collect()
        assert job.state() == "waiting"
        del job
        gc.collect()
        wait_until(lambda: len(store.client_list()) <= before, "the connection is closed")

    def test_a_forgotten_event_stream_closes_its_connection(
        self, queue: sync.Queue, store: redis.Redis
    ) -> None:
        queue.add("n")
        before = len(store.client_list())
        events = queue.events(since="0")
        assert next(iter(events)).name == "added"  # the stream lives as long as the loop over it
        assert len(store.client_list()) > before
        del events
        gc.collect()
        wait_until(lambda: len(store.client_list()) <= before, "the connection is closed")

    def test_can_be_used_again_after_close(self, queue: sync.Queue) -> None:
        queue.add("n")
        queue.close()
        queue.add("n")
        assert queue.counts()["waiting"] == 2

    def test_close_of_an_unused_queue_starts_nothing(self) -> None:
        code = "import threading; from oxcart import sync; sync.Queue('q').close(); "
        code += "print(threading.active_count())"
        assert run_script(code, "redis://127.0.0.1:1/0").strip() == "1"


class TestFork:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    def test_the_background_thread_imports_nothing(self, url: str, host: str) -> None:
        """A fork in the middle of an import leaves the child with an import that never ends."""
        output = run_script(
            """
            import sys
            from oxcart.sync import Queue
            queue = Queue("q")
            before = set(sys.modules)
            job = queue.add("n")
            queue.add_many([("n", 1)] * 3, delay=5)
            job.state(), job.get(), queue.counts(), queue.jobs.list("waiting"), queue.pause(), queue.resume()
            for call in (lambda: job.result(timeout=0.01), lambda: queue.add("n", float("nan"))):
                try:
                    call()
                except (TimeoutError, ValueError) as error:
                    str(error)
            with queue.events() as events:
                events.read(0.01)
            queue.close()
            print(sorted(set(sys.modules) - before))
            """,
            url.replace("127.0.0.1", host),
        )
        assert output.strip() == "[]"

    def test_parent_and_children_use_the_same_queue(self, url: str, store: redis.Redis) -> None:
        output = run_script(
            """
            import os, sys, threading
            from oxcart.sync import Queue
            queue = Queue("q")
            queue.add("parent")
            children = []
            for _ in range(3):
                child = os.fork()
                if child == 0:
                    for number in range(20):
                        queue.add("child", number)
                    assert [t.name for t in threading.enumerate()].count("oxcart-sync") == 1
                    queue.close()
                    sys.exit(0)
                children.append(child)
                queue.add("parent")
            for child in children:
                assert os.waitpid(child, 0)[1] == 0
            for _ in range(20):
                queue.add("parent")
            print(queue.counts()["waiting"])
            """,
            url,
        )
        assert output.strip() == "84"
        assert store.llen("bull:q:wait") == 84

    def test_fork_in_the_midst_of_other_threads_calls(self, url: str) -> None:
        output = run_script(
            """
            import os, threading
            from oxcart.sync import Queue
            queue = Queue("q")
            stop = threading.Event()
            def busy():
                while not stop.is_set():
                    queue.add("busy")
            threads = [threading.Thread(target=busy) for _ in range(4)]
            for thread in threads: thread.start()
            for _ in range(10):
                child = os.fork()
                if child == 0:
                    queue.add("child")
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
            stop.set()
            for thread in threads: thread.join()
            print(sum(job.name == "child" for job in queue.jobs.list("waiting", limit=10**6)))
            """,
            url,
        )
        assert output.strip() == "10"

    def test_waiting_for_results_on_both_sides(self, url: str) -> None:
        output = run_script(
            """
            import os
            from oxcart.model.errors import ResultTimeout
            from oxcart.sync import Queue
            queue = Queue("q")
            job = queue.add("n")
            def waits():
                try:
                    job.result(timeout="20ms")
                except ResultTimeout:
                    return True
            assert waits()
            child = os.fork()
            if child == 0:
                os._exit(0 if waits() else 1)
            assert os.waitpid(child, 0)[1] == 0
            print(waits())
            """,
            url,
        )
        assert output.strip() == "True"


class TestExit:
    def test_the_process_ends_by_itself(self, url: str) -> None:
        assert (
            run_script("from oxcart.sync import Queue; Queue('q').add('n'); print('ended')", url) == "ended\n"
        )

    def test_an_exit_handler_may_still_add(self, url: str, store: redis.Redis) -> None:
        run_script(
            """
            import atexit
            from oxcart.sync import Queue
            queue = Queue("q")
            queue.add("first")
            atexit.register(lambda: queue.add("last"))
            """,
            url,
        )
        assert store.llen("bull:q:wait") == 2

    def test_ctrl_c_ends_a_wait(self, url: str) -> None:
        output = run_script(
            """
            import os, signal, threading
            from oxcart.sync import Queue
            queue = Queue("q")
            job = queue.add("n")
            try:
                threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
                job.result()
            except KeyboardInterrupt:
                print("interrupted", job.state())
            """,
            url,
        )
        assert output.strip() == "interrupted waiting"
