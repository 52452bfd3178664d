"""Finding jobs and groups of failures from the command line."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from oxcart import PermanentError, Queue, TemporaryError, Worker
from oxcart.model.errors import JobFailed
from tests.cli.conftest import Commands
from tests.servers import ValkeyServer

LIMIT = 60


def run_jobs(server: ValkeyServer, *names: str, **options: Any) -> None:
    """Runs jobs one after the other; ``broken`` fails for good, ``busy`` is a dead letter at once."""

    async def work() -> None:
        async with Queue("mail", url=server.url) as queue:

            @queue.fallback
            async def handle(job: Any) -> str:
                if job.name == "broken":
                    raise PermanentError(f"order {job.id} is unknown")
                if job.name == "busy":
                    raise TemporaryError("the line is busy")
                return "fine"

            async with Worker(queue, concurrency=1, name="night-1").running():
                for number, name in enumerate(names):
                    job = await queue.add(name, job_id=f"{name}-{number}", attempts=1, **options)
                    with contextlib.suppress(JobFailed):
                        await job.result(LIMIT)

    asyncio.run(work())


def ids(ox: Commands, *arguments: str) -> list[str]:
    return [row["id"] for row in ox("jobs", "mail", "--json", *arguments).json]


def test_jobs_are_found_by_what_they_are(ox: Commands, clean: ValkeyServer) -> None:
    run_jobs(clean, "good", "broken", "busy", tags={"tenant": "acme"})
    ox("add", "mail", "good", "--job-id", "new")
    assert ids(ox, "--reason", "unknown") == ["broken-1"]
    assert ids(ox, "--state", "dead_letter") == ["busy-2"]
    assert set(ids(ox, "--state", "failed", "--wire")) == {"broken-1", "busy-2"}
    assert ids(ox, "--state", "failed") == ["broken-1"]
    assert ids(ox, "--state", "scheduled") == ids(ox, "--state", "waiting") == ["new"]
    assert set(ids(ox, "--name", "good")) == {"good-0", "new"}
    assert set(ids(ox, "--worker", "night-*")) == {"good-0", "broken-1", "busy-2"}
    assert set(ids(ox, "--tag", "tenant=acme", "--category", "permanent")) == {"broken-1"}
    assert len(ids(ox, "--since", "1h")) == 4
    assert ids(ox, "--until", "1h") == []
    assert ids(ox, "--since", "2001-01-01T00:00Z", "--until", "2001-01-02") == []


def test_the_last_line_counts_the_rest(ox: Commands, clean: ValkeyServer) -> None:
    for _ in range(3):
        ox("add", "mail", "hello", "--lines", stdin="1\n2\n")
    assert ox("jobs", "mail", "--limit", "2").out.splitlines()[-1] == "2 of 6"
    assert ox("jobs", "mail", "--limit", "2", "--first", "4").out.splitlines()[-1] == "2 of 6, from 5"
    last = ox("jobs", "mail", "--name", "hello", "--scan", "4").out.splitlines()[-1]
    assert last == "4 of at least 4; read 4 of 6 jobs, --scan 40 reads more"
    run_jobs(clean, "busy")
    last = ox("jobs", "mail", "--state", "failed").out.splitlines()[-1]
    assert last == "0 of 0; not shown: 1 dead_letter"


def test_times_in_utc(ox: Commands) -> None:
    ox("add", "mail", "hello", "--job-id", "one")
    created = ox("job", "mail", "one").out.split("created")[1].splitlines()[0].strip()
    assert created.endswith("Z")
    assert created in ox("jobs", "mail", "--utc").out
    assert created not in ox("jobs", "mail").out


def test_states_are_formal_unless_the_wire_is_asked_for(ox: Commands, clean: ValkeyServer) -> None:
    run_jobs(clean, "busy")
    row = ox("jobs", "mail", "--json").json[0]
    assert (row["state"], row["wire_state"]) == ("dead_letter", "failed")
    assert "dead_letter" in ox("jobs", "mail").out
    assert "dead_letter" not in ox("jobs", "mail", "--wire").out
    assert ("dead_letter" in ox("job", "mail", "busy-0").out) is True
    assert "wire state" not in ox("job", "mail", "busy-0").out
    assert "wire state  failed" in ox("job", "mail", "busy-0", "--wire").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--since", "soon"], "since must be a duration back from now"),
        (["--tag", "tenant"], "a tag is NAME=VALUE"),
        (["--category", "odd"], "category must be one of"),
        (["--state", "lost"], "state must be one of pending"),
        (["--scan", "0"], "--scan"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(ox: Commands, arguments: list[str], message: str) -> None:
    ox("add", "mail", "hello")
    ended = ox("jobs", "mail", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


def test_unroutable_jobs_by_their_formal_state(ox: Commands) -> None:
    ox("add", "mail", "hello", "--target", "all;c=gpu", "--job-id", "lost")
    ox("add", "mail", "hello")
    shown = ox("jobs", "mail", "--unroutable", "--state", "scheduled")
    assert "lost" in shown.out
    assert shown.out.splitlines()[-1] == "1 of 1"
    assert ids(ox, "--unroutable", "--state", "delayed") == []


class TestFailures:
    def test_groups_by_reason_and_frame(self, ox: Commands, clean: ValkeyServer) -> None:
        run_jobs(clean, "broken", "busy", "broken", "good")
        found = ox("failures", "mail", "--json").json
        first, second = found["groups"]
        assert (found["failed"], found["exact"]) == (3, True)
        assert (first["reason"], first["count"], first["ids"]) == (
            "order <id> is unknown",
            2,
            ["broken-2", "broken-0"],
        )
        assert (second["reason"], second["states"]) == ("the line is busy", {"dead_letter": 1})
        shown = ox("failures", "mail").out
        for text in ("2 jobs", "order <id> is unknown", "test_find.py:", " in handle", "broken-2, broken-0"):
            assert text in shown
        assert shown.splitlines()[-1] == "2 of 2 groups, 3 jobs"

    def test_options(self, ox: Commands, clean: ValkeyServer) -> None:
        run_jobs(clean, "broken", "busy", "broken")
        assert ox("failures", "mail", "--until", "1h", "--json").json["groups"] == []
        assert len(ox("failures", "mail", "--since", "1h", "--state", "failed", "--json").json["groups"]) == 1
        shown = ox("failures", "mail", "--scan", "2", "--limit", "1").out
        assert shown.splitlines()[-1] == (
            "1 of 2 groups, at least 2 jobs; read 2 of 3 jobs, --scan 20 reads more"
        )
        assert "Z" in ox("failures", "mail", "--utc").out

    def test_a_missing_queue_is_no_empty_one(self, ox: Commands) -> None:
        missed = ox("failures", "mial")
        assert (missed.code, missed.err) == (1, "oxcart: no such queue: mial\n")

    def test_on_bridge(self, ox: Commands, clean: ValkeyServer) -> None:
        async def work() -> None:
            async with Queue("email", url=clean.url, protocol="bridge", namespace="wk") as queue:

                @queue.fallback
                async def handle(job: Any) -> None:
                    raise PermanentError(f"order {job.id} is unknown")

                async with Worker(queue).running():
                    for _ in range(2):
                        with contextlib.suppress(JobFailed):
                            await (await queue.add("email")).result(LIMIT)

        asyncio.run(work())
        (group,) = ox("--namespace", "wk", "failures", "email", "--json").json["groups"]
        assert (group["reason"], group["count"]) == ("order <id> is unknown", 2)


class TestRetry:
    def test_what_was_found_can_be_retried(self, ox: Commands, clean: ValkeyServer) -> None:
        run_jobs(clean, "good", "broken", "busy", "broken", tags={"tenant": "acme"})
        asked = ("retry", "mail", "--all-failed", "--reason", "order")
        dry = ox(*asked, "--dry-run")
        assert dry.out == "broken-1\nbroken-3\nmail: 2 jobs would run again\n"
        assert ids(ox, "--reason", "unknown", "--oldest") == ["broken-1", "broken-3"]
        assert ox(*asked, "--limit", "1").out == "mail: 1 job of 2 that match will run again\n"
        assert ids(ox, "--state", "scheduled") == ["broken-1"]
        for words in (
            ("--name", "busy", "--category", "permanent"),
            ("--tag", "tenant=other"),
            ("--worker", "day-*"),
            ("--name", "broken", "--until", "1h"),
        ):
            assert ox("retry", "mail", "--all-failed", *words).out == "mail: 0 jobs will run again\n"
        found = ox("retry", "mail", "--all-failed", "--name", "busy", "--reset", "--json").json
        assert found == {
            "queue": "mail",
            "matched": 1,
            "retried": 1,
            "dry_run": False,
            "ids": ["busy-2"],
            "refused": [],
        }
        assert (
            ox("retry", "mail", "--all-completed", "--worker", "night-*").out
            == "mail: 1 job will run again\n"
        )
        assert ids(ox, "--state", "failed") == ["broken-3"]

    def test_a_search_that_stops_says_so(self, ox: Commands, clean: ValkeyServer) -> None:
        run_jobs(clean, "broken", "broken", "broken")
        shown = ox("retry", "mail", "--all-failed", "--name", "broken", "--dry-run", "--scan", "1").out
        assert shown.endswith("--scan 10 reads more\n")

    @pytest.mark.parametrize("words", [("--name", "x"), ("--dry-run",), ("--reason", "x", "--since", "1h")])
    def test_filters_go_with_all(self, ox: Commands, words: tuple[str, ...]) -> None:
        ended = ox("retry", "mail", "job", *words)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert "go with --all-failed or --all-completed" in ended.err
