"""Bad input: each error names the remedy, and after a restart nothing is lost or doubled."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis

from oxcart.model.errors import AccessDenied, BrokerUnavailable, OxcartError
from oxcart.spark.options import QueueSelection, ServerAddress
from tests.servers import ValkeyServer

pytest.importorskip("pyspark")

from oxcart.spark.errors import WorkerLate, unwrapped
from oxcart.spark.lake.versions import LakeError
from oxcart.spark.pipeline import Pipeline, Plan
from oxcart.spark.read.spool import Spool
from oxcart.spark.read.tailer import Tailer, Tailing
from tests.spark.conftest import SECRETS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Emit = Callable[..., list[str]]
FIRST = 1_793_577_600_000  # 2026-11-02
SECRET, WRONG = SECRETS["OXCART_TEST_RIGHT"], SECRETS["OXCART_TEST_WRONG"]


def write(client: redis.Redis, count: int, *, size: int = 0) -> None:
    client.hset("bull:q:meta", "opts.maxLenEvents", "1000000")
    pipe = client.pipeline(transaction=False)
    for number in range(count):
        fields = {"event": "progress", "jobId": str(number), "data": os.urandom(size).hex()}
        pipe.xadd("bull:q:events", cast(Any, fields))
    pipe.execute()


def ordinals(pipeline: Pipeline) -> list[int]:
    found = pipeline.tables.read("events").filter("stream = 'events' and kind = 'entry'")
    return sorted(row.ordinal for row in found.select("ordinal").collect())


@contextmanager
def at_most(size: int, pids: Callable[[], list[int]] = lambda: [0]) -> Iterator[None]:
    """No file of some processes may grow beyond so many bytes: the file system is full for them.

    Processes that end meanwhile (Spark's idle ones do) are skipped. Processes that start meanwhile inherit
    the limit of their parent and lose it with the others.
    """
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        _limit(pids(), (size, before[1]))
        yield
    finally:
        _limit(pids(), before)
        _limit(pids(), before)  # children of a process that still had the limit
        signal.signal(signal.SIGXFSZ, handler)


def _limit(pids: list[int], limits: tuple[int, int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


def children(pid: int) -> list[int]:
    """Returns all descendants of a process, without those that end meanwhile."""
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                for child in map(int, (task / "children").read_text().split()):
                    found += [child, *children(child)]
    return found


@pytest.fixture
def pipeline(spark: SparkSession, url: str, tmp_path: Path) -> Pipeline:
    return Pipeline(
        spark, Plan(tmp_path / "lake", ServerAddress(url=url), QueueSelection(("q",)), samples=False)
    )


@pytest.fixture
def locked() -> Iterator[ValkeyServer]:
    """A server that asks for a password."""
    with ValkeyServer(requirepass=SECRET) as server:
        yield server


class TestWrongPassword:
    def test_access_is_denied_without_showing_the_password(
        self,
        spark: SparkSession,
        locked: ValkeyServer,
        tmp_path: Path,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        write(locked.client(password=SECRET), 10)

        def pipeline(variable: str) -> Pipeline:
            address = ServerAddress(url=locked.url, password_env=variable)
            return Pipeline(spark, Plan(tmp_path / "lake", address, QueueSelection(("q",)), samples=False))

        message = []
        with pytest.raises(AccessDenied, match=r"does not let us in.*passwordEnv names") as caught:
            pipeline("OXCART_TEST_WRONG").ingest()
        message.append(str(caught.value) + str(caught.value.__cause__))
        options = {"url": locked.url, "passwordEnv": "OXCART_TEST_WRONG", "queue": "q"}
        with pytest.raises(Exception, match="does not let us in") as actual:
            spark.read.format("oxcart").options(**options).load().collect()
        message.append(str(actual.value))
        rows = spark.createDataFrame([("a",)], "k string")
        with pytest.raises(Exception, match=r"WRONGPASS|password") as refused:
            rows.write.format("oxcart").options(**options, key="k", name="n").mode("append").save()
        message.append(str(refused.value))
        shown = "".join([*message, *capfd.readouterr()])
        assert WRONG not in shown
        assert SECRET not in shown
        kept = [path for path in (tmp_path / "lake").rglob("*") if path.is_file()]
        assert not [path for path in kept if WRONG.encode() in path.read_bytes()]
        right = pipeline("OXCART_TEST_RIGHT")
        right.ingest()
        assert ordinals(right) == list(range(1, 11))
        kept = [path for path in (tmp_path / "lake").rglob("*") if path.is_file()]
        assert not [path for path in kept if SECRET.encode() in path.read_bytes()], "nor in a checkpoint"

    def test_the_command_says_it_in_one_line(self, locked: ValkeyServer, tmp_path: Path) -> None:
        url = locked.url.replace("redis://", f"redis://:{WRONG}@")
        done = subprocess.run(
            [sys.executable, "-m", "oxcart.cli", "pipeline", "run", "--once", "--queue", "q"],
            env={**os.environ, "OXCART_URL": url, "OXCART_LAKE": str(tmp_path / "lake")},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 3, done.stderr
        assert "does not let us in" in done.stderr
        assert "Traceback" not in done.stderr
        assert WRONG not in done.stdout + done.stderr


def test_unreachable_server_is_named_and_ingest_resumes(spark: SparkSession, tmp_path: Path) -> None:
    with ValkeyServer(appendonly=True) as server:
        write(server.client(), 10)
        plan = Plan(tmp_path / "lake", ServerAddress(url=server.url), QueueSelection(("q",)), samples=False)
        pipeline = Pipeline(spark, plan)
        pipeline.ingest()
        write(server.client(), 10)
        server.halt()
        with pytest.raises(
            BrokerUnavailable, match=r"cannot reach 127\.0\.0\.1.*run this again: nothing is lost"
        ):
            pipeline.ingest()
        server.start()
        pipeline.ingest()
        assert ordinals(pipeline) == list(range(1, 21))


def test_unknown_events_are_kept(pipeline: Pipeline, emit: Emit, store: redis.Redis) -> None:
    emit(
        "q",
        {"event": "added", "jobId": "1", "name": "n"},
        {"event": "mine", "jobId": "1", "own": "ü"},
        {"nothing": "known"},
        {"event": "waiting"},
        {"event": "delayed", "jobId": "2", "delay": "soon"},
        {"event": "waiting", "jobId": "1"},
        at=FIRST,
    )
    cast(Any, store).execute_command(
        "XADD", "bull:q:events", f"{FIRST + 99}-0", "event", b"b\xff", "x", b"\xfe"
    )
    emit("q", {"jobId": "1", "odd": "record"}, suffix="ox:attempts", at=FIRST)
    pipeline.once()
    assert ordinals(pipeline) == list(range(1, 8))
    why = [row.why for row in pipeline.tables.read("quarantine").orderBy("stream", "ordinal").collect()]
    assert why == [
        "an event of an unknown name",
        "no event field",
        "no jobId field",
        "a delay that is no number",
        "bytes that are no text, or a field that stands twice",
        "no event field",
    ]
    states = {row.job_id: row.state for row in pipeline.tables.read("jobs").collect()}
    assert states == {"1": "scheduled", "2": "delayed"}


def test_a_stream_that_vanishes_is_no_error(pipeline: Pipeline, store: redis.Redis) -> None:
    write(store, 10)
    pipeline.ingest()
    store.delete("bull:q:events", "bull:q:meta")
    assert pipeline.ingest() == 0
    assert ordinals(pipeline) == list(range(1, 11))


def test_a_corrupt_checkpoint_is_moved_away_and_nothing_lost_or_doubled(
    pipeline: Pipeline, store: redis.Redis
) -> None:
    write(store, 10)
    pipeline.ingest()
    folder = pipeline.lake.root / "_checkpoints" / "main"
    actual = 10
    for number, (path, text) in enumerate(
        (("offsets/0", "v1\nnonsense"), ("offsets/0", ""), ("commits/0", ""), ("metadata", "{"))
    ):
        (folder / path).write_text(text)
        write(store, 10)
        actual += 10
        with pytest.raises(LakeError, match=r"checkpoint cannot be read.*move .* away and run again"):
            pipeline.ingest()
        folder.rename(folder.with_name(f"away-{number}"))
        pipeline.ingest()
        assert ordinals(pipeline) == list(range(1, actual + 1)), f"after {text!r} in {path}"


class TestLate:
    """A machine that is too busy to start Spark's Python process in time."""

    def test_a_stream_that_could_not_begin_is_begun_again(
        self, pipeline: Pipeline, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(store, 10)
        begin, begun = pipeline._await, [0]

        def late(query: Any) -> None:
            query.awaitTermination()
            begun[0] += 1
            if begun[0] < 3:
                raise WorkerLate("not there")
            begin(query)

        monkeypatch.setattr(pipeline, "_await", late)
        pipeline.ingest()
        assert begun == [3]
        assert ordinals(pipeline) == list(range(1, 11)), "each once"
        begun[0] = -10
        with pytest.raises(WorkerLate):
            pipeline.ingest()
        assert begun == [-7]


class TestFull:
    def test_a_lake_that_cannot_grow_while_tasks_write_bronze(
        self, pipeline: Pipeline, spark: SparkSession, store: redis.Redis
    ) -> None:
        write(store, 10)
        pipeline.ingest()
        version = pipeline.lake.head().number
        write(store, 400, size=500)
        with (
            at_most(100_000, lambda: children(self._jvm(spark))),
            pytest.raises(LakeError, match=r"cannot grow: .*File too large; make room .*nothing is lost"),
        ):
            pipeline.ingest()
        assert pipeline.lake.head().number == version
        assert list((pipeline.lake.root / "_staging").iterdir()) == [], "what was begun is cleared away"
        pipeline.ingest()
        assert ordinals(pipeline) == list(range(1, 411))

    def test_a_lake_that_cannot_grow_while_spark_writes(
        self, pipeline: Pipeline, spark: SparkSession, emit: Emit
    ) -> None:
        emit("q", *({"event": "added", "jobId": str(number), "name": "n"} for number in range(400)), at=FIRST)
        pipeline.ingest()
        version = pipeline.lake.head().number
        with (
            at_most(2000, lambda: [self._jvm(spark), *children(self._jvm(spark))]),
            pytest.raises(LakeError, match=r"cannot grow: File too large; make room .*nothing is lost"),
        ):
            pipeline.builder.refresh()
        assert pipeline.lake.head().number == version
        assert list((pipeline.lake.root / "_staging").iterdir()) == [], "what was begun is cleared away"
        pipeline.builder.refresh()
        assert pipeline.tables.read("queue_metrics").count() > 0

    @staticmethod
    def _jvm(spark: SparkSession) -> int:
        return int(cast(Any, spark)._jvm.java.lang.ProcessHandle.current().pid())

    def test_a_spool_that_cannot_grow_ends_the_run(
        self, url: str, store: redis.Redis, tmp_path: Path
    ) -> None:
        write(store, 2000)
        spool = Spool(tmp_path / "spool")
        with at_most(10_000):
            tailing = Tailing(Tailer(ServerAddress(url=url), QueueSelection(("q",)), spool))
            tailing._thread.join(120)
            with pytest.raises(LakeError, match=r"the spool in .* cannot grow: .*File too large"):
                tailing.check()
            tailing.stop()
        assert [path for path in spool.root.rglob("*") if path.is_file()] == [], "no partial file"
        tailer = Tailer(ServerAddress(url=url), QueueSelection(("q",)), spool)
        assert tailer.step() == 2000
        end = spool.end("q")
        assert end is not None
        assert end.n == 2000


class TestWords:
    def test_the_line_of_ours_is_found_in_sparks(self) -> None:
        text = (
            "[STREAM_FAILED] Query failed: py4j.Py4JException: An exception was raised by the Python Proxy.\n"
            "Traceback (most recent call last):\n"
            '  File "x.py", line 1, in call\n'
            "oxcart.spark.lake.versions.LakeError: the checkpoint cannot be read: move it away\n"
            "\tat py4j.Protocol.getReturnValue(Protocol.java:476)\n"
        )
        made = unwrapped(RuntimeError(text), Path("lake"))
        assert type(made) is LakeError
        assert str(made) == "the checkpoint cannot be read: move it away"

    def test_other_oxcart_errors_stay_oxcart_errors(self) -> None:
        made = unwrapped(
            RuntimeError("x\noxcart.model.errors.ValidationError: option must be one of a"), Path("x")
        )
        assert type(made) is OxcartError

    def test_late_python_worker_raises_worker_late(self) -> None:
        text = "[STREAM_FAILED] org.apache.spark.SparkException: Python worker failed to connect back."
        made = unwrapped(RuntimeError(text), Path("x"))
        assert isinstance(made, WorkerLate)
        assert str(made).endswith("run it again: nothing is lost")

    def test_other_errors_are_left_alone(self) -> None:
        error = RuntimeError("something else")
        assert unwrapped(error, Path("x")) is error
