"""``oxcart work``: real processes, real signals."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oxcart.cli import apps
from oxcart.cli.exits import CommandError
from oxcart.sync import Queue
from tests.cli.conftest import LIMIT, Commands, Program
from tests.servers import ValkeyServer, free_port, free_ports, wait_until

APP = """
import asyncio, logging, os
from oxcart import Queue

log = logging.getLogger("app")
mail = Queue("mail")
empty = Queue("empty")
VERSION = 1

@mail.job
async def who() -> dict:
    log.info("asked")
    return {"pid": os.getpid(), "version": VERSION}

@mail.job
async def slow(seconds: float) -> str:
    log.info("slow begins")
    await asyncio.sleep(seconds)
    return "slept"

@mail.job
def in_thread() -> str:
    return "thread"

@mail.job(run="process")
def in_process() -> int:
    return os.getpid()

@mail.job(attempts=1)
async def die() -> None:
    os._exit(9)
"""

Start = Callable[..., Program]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    file = tmp_path / "app.py"
    file.write_text(APP)
    return file


@pytest.fixture
def mail(clean: ValkeyServer) -> Queue:
    return Queue("mail", url=clean.url)


def ask(mail: Queue, name: str = "who", **data: Any) -> Any:
    """Runs a job on any worker."""
    return mail.add(name, data).result(timeout=LIMIT)


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def is_ready(port: int) -> bool:
    return get(port, "/ready")[0] == 200


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


@pytest.mark.usefixtures("app")
class TestOneProcess:
    @pytest.mark.parametrize(("flags", "stored"), [((), ["nightly"]), (("--no-schedules",), [])])
    def test_schedules_of_the_app(
        self, start: Start, mail: Queue, app: Path, flags: tuple[str, ...], stored: list[str]
    ) -> None:
        app.write_text(f'{APP}\n\n@mail.job(cron="0 3 * * *")\nasync def nightly() -> None: ...\n')
        program = start("work", "app:mail", *flags)
        ask(mail)
        if stored:
            program.wait_for("schedule nightly runs by cron '0 3 * * *' (UTC)")
        assert [one.id for one in mail.schedules.list()] == stored
        assert program.end() == 0

    def test_runs_jobs_of_every_kind_and_ends_on_sigterm(self, start: Start, mail: Queue) -> None:
        program = start("work", "app:mail", "--json", "--name", "bob")
        assert ask(mail)["pid"] == program.process.pid
        assert ask(mail, "in_thread") == "thread"
        assert ask(mail, "in_process") != program.process.pid
        assert program.end() == 0
        records = [json.loads(line) for line in program.seen]
        (asked,) = (record for record in records if record["message"] == "asked")
        assert asked["queue"] == "mail"
        assert asked["job_name"] == "who"
        assert asked["attempt"] == 1
        assert f"-{program.process.pid}-" in asked["worker_id"]
        assert any(record["message"].startswith("worker bob ended after 3 jobs") for record in records)

    def test_a_running_job_may_end(self, start: Start, mail: Queue) -> None:
        program = start("work", "app:mail")
        job = mail.add("slow", {"seconds": 1.5})
        program.wait_for("slow begins")
        program.send(signal.SIGINT)
        assert job.result(timeout=LIMIT) == "slept"
        assert program.wait() == 0

    def test_a_second_signal_returns_running_jobs(self, start: Start, mail: Queue) -> None:
        program = start("work", "app:mail")
        job = mail.add("slow", {"seconds": 600})
        program.wait_for("slow begins")
        program.send(signal.SIGINT)
        program.wait_for("stopping; running jobs may end within 30s")
        program.send(signal.SIGINT)
        assert program.wait() == 0
        assert job.state() == "waiting"
        assert job.get().attempts_used == 0

    def test_metrics_and_health(self, start: Start, mail: Queue, clean: ValkeyServer) -> None:
        port = free_port()
        program = start("work", "app:mail", "--metrics-port", str(port))
        ask(mail)
        wait_until(lambda: get(port, "/ready")[0] == 200, "ready")
        assert get(port, "/live") == (200, "live\n")
        body = get(port, "/metrics")[1]
        assert 'bullmq_jobs_processed_total{name="who",queue="mail",status="completed"} 1.0' in body
        assert 'bullmq_queue_length{queue="mail",state="completed"} 1.0' in body
        clean.kill()
        wait_until(
            lambda: get(port, "/ready") == (503, "not ready: the server cannot be reached\n"), "not ready"
        )
        assert get(port, "/live")[0] == 200
        assert "bullmq_redis_connection_status 0.0" in get(port, "/metrics")[1]
        clean.start()
        wait_until(lambda: get(port, "/ready")[0] == 200, "ready again")
        mail.add("slow", {"seconds": 600})
        program.wait_for("slow begins")
        program.send(signal.SIGTERM)
        program.wait_for("stopping")
        assert get(port, "/ready") == (503, "not ready: shutting down\n")
        assert program.end() == 0

    def test_a_thread_that_never_ends_does_not_keep_the_process(
        self, start: Start, mail: Queue, app: Path
    ) -> None:
        app.write_text(
            APP
            + """
import atexit, time
atexit.register(print, "said goodbye")

@mail.job
def stuck() -> None:
    log.info("stuck begins")
    while True:
        time.sleep(1)
"""
        )
        program = start("work", "app:mail", "--shutdown-timeout", "100ms")
        job = mail.add("stuck", {})
        program.wait_for("stuck begins")
        assert program.end() == 0
        assert "said goodbye" in program.seen
        assert job.state() == "waiting"

    @pytest.mark.parametrize(
        ("handler", "state"),
        [
            (
                """
async def stuck() -> None:
    log.info("stuck begins")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
""",
                "waiting",
            ),
            (
                """
async def stuck() -> None:
    log.info("stuck begins")
    await asyncio.to_thread(time.sleep, 3600)
""",
                "waiting",
            ),
            (
                """
async def stuck() -> None:
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(3600,))
    child.start()
    log.info("stuck begins")
    await asyncio.sleep(3600)
""",
                "waiting",
            ),
            (
                """
async def stuck() -> None:
    log.info("stuck begins")
    time.sleep(3600)
""",
                "active",  # nothing in the process could return it
            ),
        ],
        ids=["ignores its cancellation", "waits for a thread", "left a process", "blocks the loop"],
    )
    def test_process_exits_after_its_shutdown_timeout(
        self, start: Start, mail: Queue, app: Path, handler: str, state: str
    ) -> None:
        app.write_text(APP + "\nimport asyncio, multiprocessing, time\n\n@mail.job" + handler)
        program = start("work", "app:mail", "--shutdown-timeout", "200ms")
        job = mail.add("stuck", {})
        program.wait_for("stuck begins")
        program.send(signal.SIGTERM)
        assert program.wait(limit=30) == (0 if state == "waiting" else 1)
        assert job.state() == state

    def test_a_second_signal_ends_a_process_whose_handler_ignores_cancellation(
        self, start: Start, mail: Queue, app: Path
    ) -> None:
        app.write_text(
            APP
            + """
import asyncio

@mail.job
async def stuck() -> None:
    log.info("stuck begins")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""
        )
        program = start("work", "app:mail", "--shutdown-timeout", "1h")
        job = mail.add("stuck", {})
        program.wait_for("stuck begins")
        program.send(signal.SIGTERM)
        program.wait_for("stopping")
        program.send(signal.SIGTERM)
        assert program.wait(limit=30) == 0
        assert job.state() == "waiting"

    def test_a_taken_port_is_an_error(self, start: Start, clean: ValkeyServer) -> None:
        program = start("work", "app:mail", "--metrics-port", str(clean.port))
        assert program.wait() == 2
        assert "metrics cannot be served" in program.seen[-1]

    def test_a_lifespan_and_middleware_of_the_application(self, start: Start, mail: Queue, app: Path) -> None:
        app.write_text(
            APP
            + """
import contextlib

@contextlib.asynccontextmanager
async def pool():
    yield "the pool"
    print("pool closed", flush=True)

async def outer(job, call):
    return ["outer", await call(job)]

async def inner(job, call):
    return ["inner", await call(job)]

@mail.job
async def state(job) -> str:
    return job.state
"""
        )
        program = start(
            *("work", "app:mail", "--lifespan", "app:pool"),
            *("--middleware", "app:outer", "--middleware", "app:inner"),
        )
        assert ask(mail, "state") == ["outer", ["inner", "the pool"]]
        assert program.end() == 0
        assert "pool closed" in program.seen

    def test_an_observer_of_the_application(self, start: Start, mail: Queue, app: Path) -> None:
        app.write_text(
            APP
            + """
from oxcart.observe.errors import FailureHook

failures = FailureHook(lambda failure: print("reported", failure.error, flush=True))

@mail.job(attempts=1)
async def broken() -> None:
    raise OSError("away")
"""
        )
        program = start("work", "app:mail", "--observer", "app:failures")
        mail.add("broken")
        program.wait_for("reported away")
        assert program.end() == 0


@pytest.mark.usefixtures("app")
class TestSeveralProcesses:
    def test_they_serve_together_and_are_replaced_when_they_die(self, start: Start, mail: Queue) -> None:
        port = free_ports(2)
        program = start("work", "app:mail", "--processes", "2", "--metrics-port", str(port), "--name", "w")
        for index in range(2):
            wait_until(partial(is_ready, port + index), f"process {index} ready")
        first = self._pids(mail)
        assert program.process.pid not in first
        os.kill(min(first), signal.SIGKILL)
        assert "ended with SIGKILL; another in 0.5 s" in program.wait_for("worker process")
        second = self._pids(mail)
        assert len(second - first) == 1
        assert program.end() == 0
        for pid in first | second:
            wait_until(partial(is_gone, pid), f"{pid} gone")

    def test_they_end_with_a_killed_supervisor(self, start: Start, mail: Queue) -> None:
        program = start("work", "app:mail", "-p", "2")
        pids = self._pids(mail)
        program.kill()
        for pid in pids:
            wait_until(partial(is_gone, pid), f"{pid} gone")

    def test_signals_are_passed_on(self, start: Start, mail: Queue) -> None:
        program = start("work", "app:mail", "-p", "2", "--log-format", "json")
        job = mail.add("slow", {"seconds": 600})
        program.wait_for("slow begins")
        program.send(signal.SIGINT)
        program.wait_for("stopping; running jobs may end")
        program.send(signal.SIGINT)
        assert program.wait() == 0
        assert job.state() == "waiting"
        assert job.get().attempts_used == 0

    def test_a_busy_process_notices_both_signals(self, start: Start, mail: Queue) -> None:
        program = start("work", "app:mail", "-p", "2")
        job = mail.add("slow", {"seconds": 600})
        program.wait_for("slow begins")
        pids = self._pids(mail)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            wait_until(partial(_is_stopped, pid), "a stopped process")
        for count in (1, 2):
            program.send(signal.SIGINT)
            for pid in pids:
                wait_until(partial(_has_pending, pid, count), "signals that wait")
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        assert program.wait() == 0
        assert job.state() == "waiting"
        assert job.get().attempts_used == 0

    def test_an_application_that_cannot_be_loaded_ends_them(self, start: Start, app: Path) -> None:
        app.write_text("import nowhere_to_be_found")
        program = start("work", "app:mail", "-p", "2")
        assert program.wait() == 2
        assert any("nowhere_to_be_found" in line for line in program.seen)

    @staticmethod
    def _pids(mail: Queue) -> set[int]:
        """The processes that serve the queue, once there are two."""
        pids: set[int] = set()

        def two() -> bool:
            pids.update(job.result(timeout=LIMIT)["pid"] for job in mail.add_many([("who", {})] * 40))
            alive = {pid for pid in pids if not is_gone(pid)}
            pids.intersection_update(alive)
            return len(pids) == 2

        wait_until(two, "two processes at work")
        return pids


class TestReload:
    def test_a_change_is_taken_up(self, start: Start, mail: Queue, app: Path) -> None:
        program = start("work", "app:mail", "--reload")
        assert ask(mail)["version"] == 1
        self._write(app, APP.replace("VERSION = 1", "VERSION = 2"))
        program.wait_for("app.py has changed")
        program.wait_for("started on mail")
        assert ask(mail)["version"] == 2
        assert program.end() == 0

    def test_a_broken_application_can_be_mended(self, start: Start, mail: Queue, app: Path) -> None:
        app.write_text("def oh(:")
        program = start("work", "app:mail", "--reload")
        program.wait_for("waiting for a change")
        self._write(app, APP)
        assert ask(mail)["version"] == 1
        assert program.end() == 0

    @staticmethod
    def _write(app: Path, text: str) -> None:
        """Writes at once, with a later time: Python reuses bytecode of a source with the same second."""
        before = app.stat().st_mtime
        made = app.with_suffix(".new")
        made.write_text(text)
        os.utime(made, (before + 1, before + 1))  # however coarse the clock of files is
        made.replace(app)


class TestTargets:
    @pytest.fixture(autouse=True)
    def here(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "shop.py").write_text(
            "from oxcart import Queue\n"
            "one, two, three = Queue('one'), Queue('two'), Queue('three')\n"
            "both = [one, two]\n"
            "number = 7\n"
            "class box: inner = one\n"
            "@one.job\ndef a(): ...\n"
            "@two.job\ndef b(): ...\n"
        )
        (tmp_path / "broken.py").write_text("import no_such_package")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.path", [str(tmp_path), *__import__("sys").path])
        for name in ("shop", "broken"):
            monkeypatch.delitem(__import__("sys").modules, name, raising=False)

    @pytest.mark.parametrize(
        ("targets", "names"),
        [
            (["shop:one"], ["one"]),
            (["shop:one", "shop:two", "shop:one"], ["one", "two"]),
            (["shop:both"], ["one", "two"]),
            (["shop:box.inner"], ["one"]),
            (["shop"], ["one", "two"]),
        ],
    )
    def test_targets_load_their_queues(self, targets: list[str], names: list[str]) -> None:
        assert [queue.name for queue in apps.load(targets)] == names

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            ("nope:x", "no module 'nope' here or on the path"),
            ("shop:nope", "module 'shop' has no 'nope'; it has one, three, two"),
            ("shop:number", "'shop:number' is no queue but a int"),
            ("shop:three", "queue 'three' has no handlers"),
            ("shop:", "'shop:' is not of the form module:queue, for example app:emails"),
            (":one", "':one' is not of the form module:queue, for example app:emails"),
        ],
    )
    def test_bad_targets_are_refused(self, target: str, message: str) -> None:
        with pytest.raises(CommandError) as refused:
            apps.load([target])
        assert str(refused.value) == message
        assert refused.value.code == 2

    @pytest.mark.parametrize("target", ["shop", "shop:", "shop:nope", "shop:number", "nope:x"])
    def test_bad_functions_are_refused(self, target: str) -> None:
        with pytest.raises(CommandError):
            apps.load_function(target)

    def test_a_missing_import_of_the_application_is_its_own_error(self) -> None:
        with pytest.raises(ModuleNotFoundError, match="no_such_package"):
            apps.load(["broken:queue"])


def test_wrong_options_are_code_2(ox: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXCART_URL", "")  # the command sets it for the application
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    for arguments, message in (
        (["app:mail", "--lock-duration", "soon"], "lock_duration must be a duration"),
        (["app:mail", "--concurrency", "0"], "greater than or equal to 1"),
        (["nowhere:mail"], "no module 'nowhere'"),
        (["app:mail", "--prefix", "other"], "a queue's prefix is set where the queue is made"),
    ):
        ended = ox("work", *arguments)
        assert ended.code == 2
        assert message in ended.err
        assert ended.err.count("\n") == 1


def _is_stopped(pid: int) -> bool:
    """Whether none of a process's threads runs."""
    threads = Path(f"/proc/{pid}/task").glob("*/status")
    return all(re.search(r"^State:\s*T", thread.read_text(), re.MULTILINE) for thread in threads)


def _has_pending(pid: int, count: int) -> bool:
    """Whether so many stop signals wait until the process runs."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = re.findall(r"^(?:Sig|Shd)Pnd:\s*(\w+)$", status, re.MULTILINE)
    stops = sum(1 << (number - 1) for number in (signal.SIGINT, signal.SIGTERM))
    return sum((int(mask, 16) & stops).bit_count() for mask in masks) == count


def test_the_server_of_the_global_option_is_that_of_the_workers(
    start: Start, app: Path, mail: Queue, clean: ValkeyServer
) -> None:
    elsewhere = f"redis://127.0.0.1:{free_port()}"
    start("--server", clean.url, "work", "app:mail", OXCART_URL=elsewhere)
    assert ask(mail)["version"] == 1
