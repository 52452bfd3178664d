"""The commands on whole queues: output as text and JSON, and exit codes."""

from __future__ import annotations

import pytest

from oxcart.sync import Queue
from tests.cli.conftest import Commands
from tests.servers import ValkeyServer


@pytest.fixture
def queue(clean: ValkeyServer) -> Queue:
    return Queue("mail", url=clean.url)


def fail(server: ValkeyServer, *ids: str, state: str = "failed") -> None:
    """Jobs that have ended, as a worker leaves them."""
    with Queue("mail", url=server.url) as queue, server.client() as client:
        for number, job_id in enumerate(ids):
            queue.add("n", job_id=job_id)
            client.lrem("bull:mail:wait", 1, job_id)
            client.zadd(f"bull:mail:{state}", {job_id: 1000 + number})
            client.hset(f"bull:mail:{job_id}", "finishedOn", 1000 + number)


class TestClean:
    def test_says_how_many(self, ox: Commands, clean: ValkeyServer) -> None:
        fail(clean, "a", "b", "c", state="completed")
        assert ox("clean", "mail", "--limit", "1").out == "mail: 1 job removed\n"
        assert ox("clean", "mail", "--grace", "1h").out == "mail: 2 jobs removed\n"
        assert ox("clean", "mail", "--json").json == {"queue": "mail", "removed": 0}

    def test_several_states_share_a_limit(self, ox: Commands, clean: ValkeyServer) -> None:
        fail(clean, "a", "b", state="completed")
        fail(clean, "c", "d")
        ended = ox(
            "clean", "mail", "--state", "completed", "--state", "failed", "--limit", "3", "--yes", "--json"
        )
        assert ended.json["removed"] == 3

    def test_jobs_that_did_not_complete_are_removed_only_with_yes(
        self, ox: Commands, clean: ValkeyServer
    ) -> None:
        fail(clean, "a", "b")
        refused = ox("clean", "mail", "--state", "failed")
        assert (refused.code, refused.err) == (2, "oxcart: this cannot be undone: pass --yes\n")
        assert ox("clean", "mail", "--state", "failed", "-y").out == "mail: 2 jobs removed\n"

    def test_an_unknown_state_is_code_2(self, ox: Commands) -> None:
        ended = ox("clean", "mail", "--state", "lost")
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert "state must be one of completed" in ended.err


class TestDrainAndObliterate:
    def test_ask_first(self, ox: Commands, queue: Queue) -> None:
        queue.add("n")
        for command in ("clear", "obliterate"):
            ended = ox(command, "mail")
            assert (ended.code, ended.err) == (2, "oxcart: this cannot be undone: pass --yes\n")
        assert queue.counts()["waiting"] == 1

    def test_clear(self, ox: Commands, queue: Queue) -> None:
        queue.add("n")
        queue.add("n", delay=60)
        assert ox("clear", "mail", "--yes").out == "mail: 1 job removed\n"
        assert ox("clear", "mail", "-y", "--delayed", "--json").json == {"queue": "mail", "removed": 1}

    def test_obliterate(self, ox: Commands, queue: Queue, clean: ValkeyServer) -> None:
        queue.add_many([("n", None)] * 3)
        with clean.client() as client:
            client.lpush("bull:mail:active", "busy")
        ended = ox("obliterate", "mail", "--yes")
        assert (ended.code, ended.err.count("\n")) == (1, 1)
        assert "workers run a job of queue mail" in ended.err
        ended = ox("obliterate", "mail", "--yes", "--force")
        assert ended.out == "mail: the queue is gone, 4 jobs with it\n"
        assert ox("queues").out == "no queues yet\n"


class TestPromoteAndRetry:
    def test_promote_by_id(self, ox: Commands, queue: Queue) -> None:
        queue.add("n", delay=60, job_id="a")
        assert ox("promote", "mail", "a").out == "a: will run now\n"
        ended = ox("promote", "mail", "a", "missing", "--json")
        assert ended.code == 1
        assert [one["ok"] for one in ended.json] == [False, False]

    def test_promote_all(self, ox: Commands, queue: Queue) -> None:
        for delay in ("1m", "1h", "1d"):
            queue.add("n", delay=delay)
        assert ox("promote", "mail", "--all", "--within", "10m").out == "mail: 1 job will run now\n"
        assert ox("promote", "mail", "--all", "--limit", "1", "--json").json["promoted"] == 1
        assert ox("promote", "mail", "--all").out == "mail: 1 job will run now\n"

    @pytest.mark.parametrize("words", [[], ["a", "--all"], ["--all", "--within", "soon"]])
    def test_promote_wrongly(self, ox: Commands, words: list[str]) -> None:
        ended = ox("promote", "mail", *words)
        assert (ended.code, ended.err.count("\n")) == (2, 1)

    def test_retry_all(self, ox: Commands, queue: Queue, clean: ValkeyServer) -> None:
        fail(clean, "a", "b", "c")
        assert ox("retry", "mail", "--all-failed", "--since", "1h").out == "mail: 0 jobs will run again\n"
        limited = ox(
            "retry", "mail", "--all-failed", "--until", "2020-01-01T00:00Z", "--limit", "1", "--json"
        )
        assert limited.json == {"queue": "mail", "retried": 1}
        assert ox("retry", "mail", "--all-failed", "--reset").out == "mail: 2 jobs will run again\n"
        fail(clean, "d", state="completed")
        assert ox("retry", "mail", "--all-completed").out == "mail: 1 job will run again\n"
        assert queue.counts()["waiting"] == 4

    @pytest.mark.parametrize(
        "words",
        [["--all-failed", "--all-completed"], ["a", "--since", "1h"], ["--all-failed", "--until", "x"]],
    )
    def test_retry_wrongly(self, ox: Commands, words: list[str]) -> None:
        ended = ox("retry", "mail", *words)
        assert (ended.code, ended.err.count("\n")) == (2, 1)


class TestLooking:
    def test_priorities(self, ox: Commands, queue: Queue) -> None:
        for priority in (0, 7, 7):
            queue.add("n", priority=priority)
        assert ox("priorities", "mail", "--json").json == [
            {"priority": 0, "jobs": 1},
            {"priority": 7, "jobs": 2},
        ]
        assert ox("priorities", "mail").out.split() == ["priority", "jobs", "─" * 14, "0", "1", "7", "2"]

    def test_metrics(self, ox: Commands, clean: ValkeyServer) -> None:
        ended = ox("metrics", "mail")
        assert (ended.code, ended.err.count("\n")) == (1, 1)
        with clean.client() as client:
            at = 1_700_000_000_000
            client.hset("bull:mail:metrics:completed", mapping={"count": 9, "prevTS": at, "prevCount": 7})
            client.rpush("bull:mail:metrics:completed:data", 2, 0, 5)
        found = ox("metrics", "mail", "--minutes", "2", "--json").json
        assert (found["completed"]["points"], found["completed"]["total"]) == ([2, 0], 3)
        shown = ox("metrics", "mail").out
        assert "2023-11-14 22:12Z" in shown
        assert "completed in all" in shown

    def test_orphans(self, ox: Commands, queue: Queue, clean: ValkeyServer) -> None:
        queue.add("n", job_id="lost")
        assert ox("orphans", "mail").out == "mail: no orphans\n"
        with clean.client() as client:
            client.delete("bull:mail:wait")
        assert ox("orphans", "mail").out == "lost\n"
        removed = ox("orphans", "mail", "--remove", "--json").json
        assert removed == {"queue": "mail", "orphans": ["lost"], "removed": True}
        assert queue.jobs.get("lost") is None


class TestEventsAndLogs:
    def test_publish(self, ox: Commands, queue: Queue) -> None:
        made = ox("publish", "mail", "deployed", "version=1.2", "by=ada", "--json").json
        (event,) = queue.events(since="0").read()
        assert (event.id, event.name, event.fields) == (
            made["id"],
            "deployed",
            {"version": "1.2", "by": "ada"},
        )
        assert ox("publish", "mail", "deployed").code == 0

    @pytest.mark.parametrize("words", [["completed"], ["mine", "novalue"], ["mine", "keep_events=1"]])
    def test_publish_wrongly(self, ox: Commands, words: list[str]) -> None:
        ended = ox("publish", "mail", *words)
        assert (ended.code, ended.err.count("\n")) == (2, 1)

    def test_trim_events(self, ox: Commands, queue: Queue) -> None:
        queue.add("n")
        assert ox("trim-events", "mail", "--keep", "0").out == "mail: 2 events dropped\n"
        assert ox("trim-events", "mail", "--keep", "0", "--json").json == {"queue": "mail", "dropped": 0}

    def test_clear_logs(self, ox: Commands, queue: Queue) -> None:
        job = queue.add("n", job_id="a")
        job.log("one", "two")
        assert ox("clear-logs", "mail", "a", "--keep", "1").out == "a: log cleared\n"
        assert job.logs() == ["two"]
        assert ox("clear-logs", "mail", "a", "missing").code == 1


def test_a_server_that_cannot_be_reached_is_code_3() -> None:
    for command in (["clean", "mail"], ["clear", "mail", "-y"], ["priorities", "mail"]):
        ended = Commands("redis://127.0.0.1:1")(*command)
        assert (ended.code, ended.err.count("\n")) == (3, 1)
