"""Handlers in processes: their results, how they are killed, and the effect of a crash."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oxcart.engine.handler import Handler
from oxcart.engine.processes import HandlerCrashed, HandlerProcesses, import_path
from oxcart.engine.sync_running import HandlerStopped
from oxcart.model.errors import ValidationError
from oxcart.model.failure import PermanentError
from tests.engine import process_handlers as handlers
from tests.engine.making import make_handler, make_job
from tests.signals import eventually


@pytest.fixture
def pool() -> Iterator[HandlerProcesses]:
    made = HandlerProcesses()
    yield made
    made.close()


async def run(pool: HandlerProcesses, function: Any, data: Any = None, **fields: Any) -> Any:
    handler = make_handler(function, run="process")
    job = make_job(data, handler=handler, **fields)
    return await pool.run(job, handler, handler.arguments(job.raw_data))


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except FileNotFoundError:
        return False


class TestRun:
    async def test_a_result(self, pool: HandlerProcesses) -> None:
        assert await run(pool, handlers.double, {"number": 21}) == 42
        assert await run(pool, handlers.add, {"point": {"x": 1, "y": 2}}) == 3
        assert await run(pool, handlers.Nest.inner) == "found"

    async def test_one_process_takes_one_job_after_another(self, pool: HandlerProcesses) -> None:
        pids = {await run(pool, handlers.whoami) for _ in range(5)}
        assert len(pids) == 1
        assert pids != {os.getpid()}

    async def test_as_many_as_run_at_once(self, pool: HandlerProcesses) -> None:
        pids = await asyncio.gather(*(run(pool, handlers.whoami) for _ in range(3)))
        assert len(set(pids)) == 3

    async def test_a_snapshot_of_the_job(self, pool: HandlerProcesses) -> None:
        seen = await run(pool, handlers.snapshot, {"x": 1}, name="snap", starts=4, fields={"atm": "2"})
        assert seen == ["1", "snap", {"x": 1}, 3, "worker-1", 4]

    async def test_its_logs_appear_in_the_worker_with_the_job(
        self, pool: HandlerProcesses, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level("INFO"):
            assert await run(pool, handlers.logs, {"what": "tea"}, name="brew") == "logged"
        record, failed = caplog.records
        assert (record.name, record.levelname, record.getMessage()) == ("kitchen", "INFO", "made tea")
        fields = {name: vars(record)[name] for name in ("job_id", "job_name", "worker_id", "attempt", "cups")}
        assert fields == {"job_id": "1", "job_name": "brew", "worker_id": "worker-1", "attempt": 1, "cups": 2}
        assert "handlers.py" in failed.getMessage()
        assert "ZeroDivisionError" in failed.getMessage()
        assert str(vars(failed)["lock"]).startswith("<unlocked")

    async def test_a_disabled_log_level_is_not_sent(
        self, pool: HandlerProcesses, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level("ERROR"):
            assert await run(pool, handlers.logs, {"what": "tea"}) == "logged"
        assert [record.levelname for record in caplog.records] == ["ERROR"]

    async def test_output_does_not_disturb(self, pool: HandlerProcesses) -> None:
        assert await run(pool, handlers.loud) == "said"


class TestErrors:
    async def test_an_exception_brings_its_stack(self, pool: HandlerProcesses) -> None:
        with pytest.raises(ValueError, match="deep inside") as caught:
            await run(pool, handlers.fail, {"kind": "value"})
        assert "process_handlers.py" in str(caught.value.__cause__)
        assert 'raise ValueError("deep inside")' in str(caught.value.__cause__)

    async def test_an_exception_keeps_its_type_and_fields(self, pool: HandlerProcesses) -> None:
        with pytest.raises(PermanentError, match="never") as caught:
            await run(pool, handlers.fail, {"kind": "permanent"})
        assert caught.value.code == "x"

    async def test_an_exception_that_cannot_travel(self, pool: HandlerProcesses) -> None:
        with pytest.raises(RuntimeError, match="Odd: this and that"):
            await run(pool, handlers.fail, {"kind": "odd"})

    async def test_a_result_that_cannot_travel(self, pool: HandlerProcesses) -> None:
        with pytest.raises(TypeError, match="the handler's result cannot be sent back"):
            await run(pool, handlers.unpicklable)

    async def test_sys_exit_is_an_error_and_not_the_end_of_the_process(self, pool: HandlerProcesses) -> None:
        before = await run(pool, handlers.whoami)
        with pytest.raises(SystemExit):
            await run(pool, handlers.fail, {"kind": "exit"})
        assert await run(pool, handlers.whoami) == before

    async def test_the_process_goes_on_after_an_error(self, pool: HandlerProcesses) -> None:
        before = await run(pool, handlers.whoami)
        for kind in ("value", "odd"):
            with pytest.raises((ValueError, RuntimeError)):
                await run(pool, handlers.fail, {"kind": kind})
        with pytest.raises(TypeError):
            await run(pool, handlers.unpicklable)
        assert await run(pool, handlers.whoami) == before


class TestCrash:
    @pytest.mark.parametrize(
        ("how", "ending"),
        [("exit", "exit code 7"), ("SIGKILL", "signal SIGKILL"), ("SIGSEGV", "signal SIGSEGV")],
    )
    async def test_a_cancellation_carries_its_reason(
        self, pool: HandlerProcesses, how: str, ending: str
    ) -> None:
        with pytest.raises(HandlerCrashed, match=f"the handler's process ended with {ending}"):
            await run(pool, handlers.crash, {"how": how})

    async def test_the_next_job_has_a_new_process(self, pool: HandlerProcesses) -> None:
        before = await run(pool, handlers.whoami)
        with pytest.raises(HandlerCrashed):
            await run(pool, handlers.crash, {"how": "exit"})
        assert await run(pool, handlers.whoami) not in (before, None)

    async def test_a_process_that_died_while_idle(self, pool: HandlerProcesses) -> None:
        before = await run(pool, handlers.whoami)
        os.kill(before, 9)
        await eventually(lambda: not pool._idle[0].is_alive, "dead")
        assert await run(pool, handlers.whoami) != before


class TestStop:
    async def test_kills_the_process_and_its_children(self, pool: HandlerProcesses, tmp_path: Path) -> None:
        handler = make_handler(handlers.hang, run="process")
        job = make_job(handler=handler)
        file = tmp_path / "pids"
        running = asyncio.create_task(pool.run(job, handler, {"file": str(file)}))
        await eventually(file.exists, "the handler runs")
        pids = [int(pid) for pid in file.read_text().split()]
        assert job.stop is not None
        job.cancel("timeout")
        job.stop()
        with pytest.raises(HandlerStopped):
            await running
        await eventually(lambda: not any(map(alive, pids)), "all of them are gone")
        assert await run(pool, handlers.double, {"number": 1}) == 2

    async def test_a_cancellation_before_the_start(self, pool: HandlerProcesses) -> None:
        handler = make_handler(handlers.whoami, run="process")
        job = make_job(handler=handler)
        job.cancel("timeout")
        with pytest.raises(HandlerStopped):
            await pool.run(job, handler, {})

    async def test_close_kills_all(self, pool: HandlerProcesses, tmp_path: Path) -> None:
        idle = await run(pool, handlers.whoami)
        handler = make_handler(handlers.hang, run="process")
        file = tmp_path / "pids"
        running = asyncio.create_task(pool.run(make_job(handler=handler), handler, {"file": str(file)}))
        await eventually(file.exists, "the handler runs")
        pids = [idle, *map(int, file.read_text().split())]
        pool.close()
        await asyncio.gather(running, return_exceptions=True)
        await eventually(lambda: not any(map(alive, pids)), "all of them are gone")


class TestImportPath:
    def test_by_module_and_name(self) -> None:
        assert import_path(Handler("n", handlers.double)) == ("tests.engine.process_handlers", "double")
        assert import_path(Handler("n", handlers.Nest.inner))[1] == "Nest.inner"

    def test_functions_without_an_import_path_are_refused(self) -> None:
        def nested() -> None: ...

        for function in (nested, lambda: None):
            with pytest.raises(
                ValidationError, match="'thread' for a function that cannot be imported by name"
            ):
                import_path(Handler("n", function))

    @pytest.mark.parametrize("guarded", [True, False])
    def test_a_handler_in_the_script_itself(self, tmp_path: Path, url: str, guarded: bool) -> None:
        """The child does not run the script again: only the parent runs its main part."""
        script = tmp_path / "app.py"
        script.write_text(
            textwrap.dedent(
                """
                import asyncio, os, sys
                from dataclasses import dataclass
                from oxcart import Queue, Worker
                from oxcart.model.errors import JobFailed
                from oxcart.testing import drain
                queue = Queue("q")

                @dataclass
                class Number:
                    value: int

                class Unlucky(Exception):
                    pass

                @queue.job(run="process", attempts=1)
                def square(number: Number) -> list:
                    if number.value == 13:
                        raise Unlucky("thirteen")
                    return [number.value * number.value, os.getpid(), __name__]

                async def main():
                    jobs = [await square.enqueue(Number(value)) for value in (0, 1, 2, 13)]
                    await drain(queue, concurrency=3)
                    for job in jobs:
                        try:
                            print(await job.result(timeout=20))
                        except JobFailed as error:
                            print("[failed,", error, error.stacktrace)
                    await queue.close()

                """
            )
            + ("if __name__ == '__main__':\n    asyncio.run(main())\n" if guarded else GUARD_BY_NAME)
        )
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "OXCART_URL": url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results = [line for line in done.stdout.splitlines() if line.startswith("[")]
        assert [line.partition(",")[0] for line in results] == ["[0", "[1", "[4", "[failed"]
        assert all("__mp_main__" in line for line in results)
        assert "Unlucky: thirteen" in results[-1]


#: Runs under any name but that under which the child loads the script.
GUARD_BY_NAME = "if __name__ != '__mp_main__':\n    asyncio.run(main())\n"
