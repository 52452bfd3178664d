"""Queues and jobs from the command line."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oxcart import PermanentError, Queue, RunningJob, TemporaryError, Worker
from oxcart.model.errors import JobFailed
from tests.cli.conftest import Commands, Program
from tests.servers import ValkeyServer


def _open(counts: dict[str, int]) -> int:
    return sum(counts[state] for state in ("waiting", "prioritized", "active"))


def work_off(server: ValkeyServer, name: str = "mail") -> None:
    """Runs every job of a queue: ``fail`` fails, all others return their data."""

    async def work() -> None:
        async with Queue(name, url=server.url) as queue:

            @queue.fallback
            async def handle(job: Any) -> Any:
                await job.log("one", "two")
                if job.name == "fail":
                    raise PermanentError("told to")
                return job.data

            async with Worker(queue, concurrency=1).running():  # one after the other
                while _open(await queue.counts()):
                    await asyncio.sleep(0.01)

    asyncio.run(work())


class TestAdd:
    def test_prints_the_id(self, ox: Commands) -> None:
        added = ox("add", "mail", "hello", '{"a": 1}')
        assert added.code == 0
        found = ox("job", "mail", added.out.strip(), "--json").json
        assert (found["name"], found["data"], found["state"]) == ("hello", {"a": 1}, "scheduled")

    def test_options_have_the_names_of_python(self, ox: Commands) -> None:
        added = ox(
            *("add", "mail", "hello", "--json", "--job-id", "mine", "--attempts", "7", "--delay", "5m"),
            *("--priority", "3", "--backoff", '{"type": "fixed", "delay": "2s"}', "--timeout", "9s"),
            *("--remove-on-complete", "true", "--remove-on-fail", "100"),
        )
        assert added.json == {"id": "mine", "queue": "mail", "created": True, "duplicate": False}
        found = ox("job", "mail", "mine", "--json").json
        options = found["options"]
        assert (found["state"], found["priority"], options["attempts"], options["delay"]) == (
            "delayed",
            3,
            7,
            300_000,
        )
        assert options["backoff"]["type"] == "fixed"
        assert options["backoff"]["delay"] == 2000

    def test_an_id_that_exists_adds_nothing(self, ox: Commands) -> None:
        assert ox("add", "mail", "hello", "--job-id", "mine").out == "mine\n"
        assert ox("add", "mail", "hello", "--job-id", "mine").out == "mine (was there already)\n"

    def test_data_from_standard_input_and_from_a_file(self, ox: Commands, tmp_path: Path) -> None:
        file = tmp_path / "data.json"
        file.write_text('["ü", null]')
        ox("add", "mail", "hello", "-", "--job-id", "in", stdin='{"x": "\\ud83d"}')
        ox("add", "mail", "hello", f"@{file}", "--job-id", "file")
        assert ox("job", "mail", "in", "--json").json["data"] == {"x": "\ud83d"}
        assert ox("job", "mail", "file", "--json").json["data"] == ["ü", None]

    def test_one_job_per_line(self, ox: Commands) -> None:
        added = ox("add", "mail", "hello", "--lines", "--json", stdin='{"n": 1}\n\n{"n": 2}\n')
        assert len(added.json) == 2
        assert ox("queues", "--json").json[0]["counts"]["waiting"] == 2

    def test_wait_prints_the_result(
        self, ox: Commands, start: Callable[..., Program], tmp_path: Path
    ) -> None:
        (tmp_path / "app.py").write_text(
            "from oxcart import PermanentError, Queue\n"
            "mail = Queue('mail')\n"
            "@mail.job\n"
            "def double(n: int): return {'n': 2 * n}\n"
            "@mail.job\n"
            "def fail(): raise PermanentError('told to')\n"
        )
        worker = start("work", "app:mail")
        assert ox("add", "mail", "double", '{"n": 4}', "--wait", "80s").out == '{"n":8}\n'
        failed = ox("add", "mail", "fail", "{}", "--wait", "80s")
        assert failed.code == 1
        assert "told to" in failed.err
        assert worker.wait_for("failed for good").endswith("attempt 1 of 3, permanent: told to")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["mail", "hello", "nojson"], "data must be JSON, got 'nojson'"),
            (["mail", "hello", "--attempts", "0"], "attempts must be at least 1, got 0"),
            (["mail", "hello", "--delay", "soon"], "delay must be a duration"),
            (["mail", "hello", "--wait", "soon"], "wait must be a duration"),
            (["a:b", "hello"], "a:b"),
            (["mail", "hello", "@/nowhere/file"], "cannot read @/nowhere/file"),
            (["mail"], "Missing argument 'name'"),
        ],
    )
    def test_a_mistake_is_one_line_and_code_2(self, ox: Commands, arguments: list[str], message: str) -> None:
        ended = ox("add", *arguments)
        assert ended.code == 2
        assert ended.out == ""
        assert ended.err.startswith("oxcart: ")
        assert message in ended.err
        assert ended.err.count("\n") == 1
        assert ox("queues", "--json").json == []


class TestQueues:
    def test_finds_what_is_there(self, ox: Commands, clean: ValkeyServer) -> None:
        assert ox("queues").out == "no queues yet\n"
        ox("add", "mail", "hello")
        ox("add", "video", "cut", "--delay", "1h")
        ox("add", "other", "x", "--prefix", "app:v1")
        with contextlib.closing(clean.client()) as client:
            client.hset("bull:mail:odd:meta", "name", "a job of that id")
            client.hset("bull:mail:meta", "version", "bullmq:5.62.0")
        found = {row["queue"]: row for row in ox("queues", "--json").json}
        assert set(found) == {"mail", "video"}
        assert found["mail"]["counts"] == {
            "waiting": 1,
            "prioritized": 0,
            "active": 0,
            "delayed": 0,
            "waiting-children": 0,
            "completed": 0,
            "failed": 0,
        }
        assert found["mail"]["version"] == "bullmq:5.62.0"
        assert found["video"]["counts"]["delayed"] == 1
        assert [row["queue"] for row in ox("queues", "--json", "--prefix=app:v1").json] == ["other"]

    @pytest.mark.parametrize("columns", ["80", "200", ""])
    def test_the_table_fits_a_narrow_window(
        self, ox: Commands, monkeypatch: pytest.MonkeyPatch, columns: str
    ) -> None:
        if columns:
            monkeypatch.setenv("COLUMNS", columns)
        else:
            monkeypatch.delenv("COLUMNS", raising=False)
        ox("add", "some-queue", "hello", "--job-id", "x" * 36)
        shown = ox("queues").out
        assert "some-queue" in shown
        for head in ("pending", "scheduled", "delayed", "running", "completed", "failed"):
            assert head in shown
        assert "x" * 36 in ox("jobs", "some-queue").out

    def test_a_prefix_is_taken_literally(self, ox: Commands) -> None:
        ox("add", "mail", "hello")
        ox("add", "mail", "hello", "--prefix", "b*ll")
        found = ox("queues", "--json", "--prefix", "b*ll").json
        assert [(row["queue"], row["counts"]["waiting"]) for row in found] == [("mail", 1)]

    def test_a_missing_queue_is_code_1(self, ox: Commands) -> None:
        ox("add", "mail", "hello")
        ended = ox("queues", "mail", "nope", "--json")
        assert ended.code == 1
        assert ended.err == "oxcart: no such queue: nope\n"
        assert [row["queue"] for row in ended.json] == ["mail"]

    def test_a_pause_of_a_missing_queue_is_refused(self, ox: Commands) -> None:
        ox("add", "mail", "hello")
        for command in ("pause", "resume"):
            refused = ox(command, "mail", "mial")
            assert (refused.code, refused.out) == (1, "")
            assert refused.err.startswith("oxcart: no such queue: mial; did you mean mail?")
        assert [row["paused"] for row in ox("queues", "--json").json] == [False]

    def test_a_queue_may_be_paused_before_its_first_job(self, ox: Commands) -> None:
        assert ox("pause", "mail", "--new").out == "mail: paused\n"
        assert ox("queues", "--json").json[0]["paused"] is True

    def test_pause_and_resume(self, ox: Commands) -> None:
        ox("add", "mail", "hello")
        assert ox("pause", "mail").out == "mail: paused\n"
        assert ox("queues", "--json").json[0]["paused"] is True
        assert ox("resume", "mail", "--json").json == [{"queue": "mail", "paused": False}]
        assert ox("queues", "--json").json[0]["paused"] is False


class TestJobs:
    def test_lists_by_state(self, ox: Commands, clean: ValkeyServer) -> None:
        for number in range(3):
            ox("add", "mail", "hello", str(number), "--job-id", f"job{number}")
        ox("add", "mail", "fail", "--job-id", "bad")
        work_off(clean)
        ox("add", "mail", "hello", "--job-id", "new")
        rows = ox("jobs", "mail", "--json").json
        assert {(row["id"], row["state"]) for row in rows} == {
            ("job0", "completed"),
            ("job1", "completed"),
            ("job2", "completed"),
            ("bad", "failed"),
            ("new", "scheduled"),
        }
        failed = ox("jobs", "mail", "--state", "failed", "--json").json
        assert [(row["id"], row["failed_reason"]) for row in failed] == [("bad", "told to")]
        page = ox("jobs", "mail", "--state=completed", "--first=1", "--limit=1", "--oldest", "--json").json
        assert [row["return_value"] for row in page] == [1]
        assert "told to" in ox("jobs", "mail").out

    def test_an_unknown_state_is_code_2(self, ox: Commands) -> None:
        ended = ox("jobs", "mail", "--state", "lost")
        assert ended.code == 2
        assert "state must be one of pending" in ended.err

    def test_a_job_with_its_log(self, ox: Commands, clean: ValkeyServer) -> None:
        ox("add", "mail", "fail", "--job-id", "bad")
        work_off(clean)
        found = ox("job", "mail", "bad", "--logs", "--json").json
        assert found["logs"] == ["one", "two"]
        assert found["attempts_made"] == 1
        shown = ox("job", "mail", "bad", "--logs").out
        for text in ("failed", "told to", "PermanentError", "one\ntwo\n"):
            assert text in shown

    def test_everything_about_a_failed_job(self, ox: Commands, clean: ValkeyServer) -> None:
        options = (
            "--tag",
            "tenant=acme",
            "--correlation-id",
            "order-7",
            "--timeout",
            "90s",
            "--attempts",
            "3",
        )
        ox("add", "mail", "flaky", "--job-id", "bad", "--history", "--backoff", "1ms", *options)

        async def work() -> None:
            async with Queue("mail", url=clean.url) as queue:

                @queue.fallback
                async def handle(job: Any) -> None:
                    raise TemporaryError("the bank said no" if job.attempt > 1 else "the line is busy")

                async with Worker(queue).running():
                    with pytest.raises(JobFailed):
                        await queue.jobs.handle("bad").result(timeout=60)

        asyncio.run(work())
        for shown in (ox("job", "mail", "bad").out, ox("dead", "show", "mail", "bad").out):
            for fact in ('{"tenant":"acme"}', "order-7", "90 s", "Trace 1 of 3:", "Traces 2 to 3 of 3, all"):
                assert fact in shown
            assert shown.count("Traceback") == 2
            rows = [line.split() for line in shown.splitlines() if " temporary " in line]
            outcomes = [(row[0], {"retried", "failed"} & set(row)) for row in rows if row[0].isdigit()]
            assert outcomes == [("1", {"retried"}), ("2", {"retried"}), ("3", {"failed"})]

    def test_a_missing_queue_is_no_empty_one(self, ox: Commands) -> None:
        ox("add", "mail", "hello")
        for command in (["jobs"], ["dead", "list"]):
            assert ox(*command, "mail").code == 0
            missed = ox(*command, "mial")
            assert (missed.code, missed.out, missed.err) == (
                1,
                "",
                "oxcart: no such queue: mial; did you mean mail?\n",
            )
            assert ox(*command, "mial", "--json").json == []

    def test_a_missing_job_is_code_1(self, ox: Commands) -> None:
        for command in (["job", "mail", "x"], ["remove", "mail", "x"], ["retry", "mail", "x"]):
            ended = ox(*command)
            assert ended.code == 1
            assert ended.err.count("\n") == 1

    def test_retry(self, ox: Commands, clean: ValkeyServer) -> None:
        for number in range(3):
            ox("add", "mail", "fail", "--job-id", f"job{number}")
        work_off(clean)
        assert ox("retry", "mail", "job0").out == "job0: will run again\n"
        assert ox("job", "mail", "job0", "--json").json["state"] == "scheduled"
        ended = ox("retry", "mail", "--all-failed", "--reset", "--json")
        assert ended.json == {"queue": "mail", "retried": 2}
        assert ox("jobs", "mail", "--state", "failed", "--json").json == []
        assert ox("retry", "mail", "job0").code == 1
        assert ox("retry", "mail").code == 2
        assert ox("retry", "mail", "job0", "--all-failed").code == 2

    def test_remove_goes_on_after_a_refusal(self, ox: Commands) -> None:
        for job_id in ("a", "b"):
            ox("add", "mail", "hello", "--job-id", job_id)
        ended = ox("remove", "mail", "a", "missing", "b", "--json")
        assert ended.code == 1
        assert [(one["id"], one["ok"]) for one in ended.json] == [
            ("a", True),
            ("missing", False),
            ("b", True),
        ]
        assert ox("jobs", "mail", "--json").json == []


class TestEvents:
    def test_one_json_object_per_line(self, ox: Commands) -> None:
        ox("add", "mail", "hello", "--job-id", "a")
        ox("pause", "mail")
        ended = ox("events", "mail", "--since", "0", "--count", "3", "--json")
        assert [(line["name"], line.get("job_id")) for line in ended.lines] == [
            ("added", "a"),
            ("waiting", "a"),
            ("paused", None),
        ]
        rest = ox(
            "events", "mail", "--since", ended.lines[0]["id"], "--name", "paused", "--count", "1", "--json"
        )
        assert rest.lines == ended.lines[2:]
        assert "added" in ox("events", "mail", "--since", "0", "--count", "1").out

    def test_a_since_that_is_no_time_is_code_2(self, ox: Commands) -> None:
        ended = ox("events", "mail", "--since", "yesterday", "--count", "1")
        assert (ended.code, ended.out) == (2, "")
        assert "since must be a time such as 2h" in ended.err

    def test_new_events_as_they_happen(self, ox: Commands, start: Callable[..., Program]) -> None:
        ox("add", "mail", "hello", "--job-id", "old")
        tail = start("events", "mail", "--json", "--name", "completed", "--name", "added")
        # The tail may not have started before the first event; a second add of an id adds nothing.
        for number in range(600):
            ox("add", "mail", "hello", "--job-id", f"new{number}")
            with contextlib.suppress(AssertionError):
                assert '"name":"added"' in tail.wait_for("new", 0.1)
                break
        else:
            raise AssertionError("no event seen")
        assert not any("old" in line for line in tail.seen)


class TestEnds:
    def test_an_unreachable_server_is_code_3(self) -> None:
        for command in (["queues"], ["add", "mail", "x"], ["events", "mail"], ["doctor"], ["pause", "mail"]):
            ended = Commands("redis://127.0.0.1:1")(*command)
            assert ended.code == 3
            assert ended.err.startswith("oxcart: cannot reach 127.0.0.1:1")
            assert ended.err.count("\n") == 1

    def test_a_wrong_url_is_code_2_and_hides_its_password(self) -> None:
        ended = Commands("http://user:secret@host")("queues")
        assert ended.code == 2
        assert "secret" not in ended.err

    def test_a_missing_extra_is_one_line(self, ox: Commands, tmp_path: Path) -> None:
        """Commands that need Spark first say so if it is not installed."""
        snapshots = tmp_path / "lake" / "_snapshots"
        snapshots.mkdir(parents=True)
        (snapshots / f"{1:020d}.json").write_text('{"number": 1, "at_ms": 1, "why": "x"}')
        program = (
            "import sys; sys.modules['pyspark'] = None; from oxcart.cli.app import run\n"
            "codes = [run(['--url', sys.argv[1], 'pipeline', *words.split()]) for words in sys.argv[2:]]\n"
            "sys.exit(codes != [1] * len(codes))"
        )
        commands = (
            "run --once",
            "query --spark SELECT",
            "report --spark",
            "rebuild --from 2026-11-01",
            "erase --correlation-id x",
        )
        ended = subprocess.run(
            [sys.executable, "-c", program, str(ox.url), *commands],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr.splitlines() == [
            "oxcart: the data pipeline needs packages that are not installed: pip install 'oxcart[spark]'"
        ] * len(commands)

    def test_a_closed_pipe_is_no_error(self, ox: Commands) -> None:
        ox("add", "mail", "hello", "--lines", stdin="1\n" * 1000)
        program = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "oxcart.cli",
                "jobs",
                "mail",
                "--limit",
                "1000",
                "--json",
                f"--url={ox.url}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert program.stdout is not None
        program.stdout.close()
        assert program.communicate(timeout=80)[1] == b""
        assert program.returncode == 0

    def test_global_options_may_stand_anywhere(self, clean: ValkeyServer) -> None:
        bare = Commands(None)
        assert bare("add", "mail", "x", "--url", clean.url, "--prefix=p").code == 0
        assert bare("queues", f"--url={clean.url}", "--prefix", "p", "--json").json[0]["queue"] == "mail"

    def test_help_is_quick(self) -> None:
        """The help loads no module that only a running command needs."""
        heavy = (
            "asyncio",
            "hiredis",
            "msgspec",
            "prometheus_client",
            "redis",
            "rich.console",
            "oxcart.queue",
        )
        code = (
            "import sys; from oxcart.cli.app import run; assert run(['--help']) == 0; "
            f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
        )
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert ended.stderr == "[]\n"

    def test_help_and_version(self, ox: Commands) -> None:
        assert ox("--version").out.startswith("oxcart ")
        assert "Usage: oxcart" in ox().out
        for command in (
            "work",
            "add",
            "queues",
            "jobs",
            "job",
            "retry",
            "remove",
            "pause",
            "resume",
            "events",
        ):
            assert ox(command, "--help").out.startswith(f"Usage: oxcart {command}")
        assert ox("nope").code == 2


class TestTargets:
    def test_an_unroutable_job_is_listed(self, ox: Commands) -> None:
        added = ox(
            "add", "mail", "render", "--job-id", "one", "--target", "any;capabilities=gpu;r=eu", "--json"
        )
        assert added.json["created"] is True
        assert ox("add", "mail", "hello").code == 0
        assert [one["id"] for one in ox("jobs", "mail", "--unroutable", "--json").json] == ["one"]
        table = ox("jobs", "mail", "--unroutable").out
        assert "any;c=gpu;r=eu" in table
        assert len(ox("jobs", "mail", "--json").json) == 2
        found = ox("job", "mail", "one", "--json").json
        assert (found["queue"], found["lane"]) == ("mail", "any;c=gpu;r=eu")
        assert [row["queue"] for row in ox("queues", "--json").json] == ["mail"]
        assert ox("queues", "--json").json[0]["counts"]["waiting"] == 2

    def test_a_target_that_cannot_be_read(self, ox: Commands) -> None:
        refused = ox("add", "mail", "render", "--target", "gpu")
        assert refused.code == 2
        assert "target must be like 'all;c=gpu,cuda;r=us-east'" in refused.err

    def test_workers(self, ox: Commands, server: ValkeyServer) -> None:
        assert ox("workers").out == "no workers\n"
        assert ox("workers", "--json").json == []

        async def look() -> None:
            async with Queue("mail", url=server.url) as queue:
                queue.fallback(lambda: None)
                abilities = {"capabilities": ["gpu", "cuda"], "region": "eu"}
                worker = Worker(queue, name="w1", abilities=abilities, concurrency=7)
                async with worker.running():
                    while not await queue.workers.list():
                        await asyncio.sleep(0.01)
                    (found,) = (await asyncio.to_thread(ox, "workers", "--json")).json
                    table = (await asyncio.to_thread(ox, "workers", "mail")).out
            assert (found["id"], found["name"], found["queues"]) == (worker.id, "w1", ["mail"])
            assert (found["capabilities"], found["region"], found["stack"]) == (
                ["cuda", "gpu"],
                ["eu"],
                ["python"],
            )
            for word in ("w1", "cuda, gpu", "eu", "python", "7"):
                assert word in table

        asyncio.run(look())


class TestSignal:
    def test_wakes_a_job_and_shows_its_steps(self, ox: Commands, server: ValkeyServer) -> None:
        async def run(until: str) -> None:
            async with Queue("mail", url=server.url) as queue:

                @queue.job
                async def approve(job: RunningJob) -> list[Any]:
                    return [await job.step("ask", str, "Ada"), await job.wait_signal("approved", "7d")]

                async with Worker(queue).running():
                    while await queue.jobs.state(job_id) != until:
                        await asyncio.sleep(0.01)

        job_id = ox("add", "mail", "approve").out.strip()
        asyncio.run(run("delayed"))
        shown = ox("job", "mail", job_id).out
        assert "ask" in shown
        assert "wait" in shown
        sent = ox("signal", "mail", job_id[:8], "approved", '{"by": 7}')
        assert (sent.code, sent.out) == (0, f"{job_id}: runs now\n")
        asyncio.run(run("completed"))
        found = ox("job", "mail", job_id, "--json").json
        assert [(step["name"], step["kind"], step["value"]) for step in found["steps"]] == [
            ("ask", "step", "Ada"),
            ("approved", "signal", {"by": 7}),
        ]
        again = ox("signal", "mail", job_id, "approved")
        assert again.code != 0
        assert "it is completed" in again.err

    def test_is_kept_for_a_job_that_does_not_wait_yet(self, ox: Commands) -> None:
        job_id = ox("add", "mail", "approve").out.strip()
        assert ox("signal", "mail", job_id, "go", "--json").json == {
            "id": job_id,
            "signal": "go",
            "woken": False,
        }
        assert "unreceived signals" in ox("job", "mail", job_id).out
        assert "data must be JSON" in ox("signal", "mail", job_id, "go", "{").err
