"""``oxcart dead``: output and exit codes."""

from __future__ import annotations

import pytest

from oxcart.sync import Queue
from tests.cli.conftest import Commands
from tests.servers import ValkeyServer


@pytest.fixture
def queue(clean: ValkeyServer) -> Queue:
    return Queue("mail", url=clean.url)


def die(server: ValkeyServer, *ids: str, category: str = "timeout") -> None:
    """Jobs that have used up their attempts, as a worker leaves them."""
    with Queue("mail", url=server.url) as queue, server.client() as client:
        for number, job_id in enumerate(ids):
            queue.add("n", job_id=job_id, attempts=1, tags={"id": job_id})
            client.lrem("bull:mail:wait", 1, job_id)
            client.zadd("bull:mail:failed", {job_id: 1000 + number})
            fields = {"finishedOn": 1000 + number, "atm": 1, "failedReason": "late", "ox:category": category}
            client.hset(f"bull:mail:{job_id}", mapping=fields)


def test_list_and_show(ox: Commands, clean: ValkeyServer) -> None:
    die(clean, "a", "b")
    die(clean, "c", category="permanent")
    assert [job["id"] for job in ox("dead", "list", "mail", "--json").json] == ["b", "a"]
    assert [job["id"] for job in ox("dead", "list", "mail", "--tag", "id=a", "--json").json] == ["a"]
    assert [job["id"] for job in ox("dead", "list", "mail", "--reason", "LATE", "--json").json] == ["b", "a"]
    assert ox("dead", "list", "mail", "--reason", "never", "--json").json == []
    assert (
        ox("dead", "replay", "mail", "--all", "--reason", "never").out
        == "mail: 0 dead letters will run again\n"
    )
    table = ox("dead", "list", "mail", "--oldest", "--category", "timeout")
    assert "timeout" in table.out
    assert table.out.index("a ") < table.out.index("b ")
    shown = ox("dead", "show", "mail", "a", "--json").json
    assert (shown["state"], shown["failed_reason"]) == ("dead_letter", "late")
    assert "late" in ox("dead", "show", "mail", "a").out
    assert (ox("dead", "show", "mail", "c").code, ox("dead", "show", "mail", "none").code) == (1, 1)


def test_permanent_failures_and_times(ox: Commands, clean: ValkeyServer, queue: Queue) -> None:
    die(clean, "a", "b")
    die(clean, "c", category="permanent")

    def listed(*arguments: str) -> list[str]:
        return [job["id"] for job in ox("dead", "list", "mail", "--oldest", "--json", *arguments).json]

    assert listed("--permanent") == ["a", "c", "b"]
    assert listed("--since", "1970-01-01T00:00:01.001Z") == ["b"]
    assert listed("--until", "1970-01-01T00:00:01Z", "--permanent") == ["a", "c"]
    assert listed("--since", "1h") == []
    assert "1970-01-01 00:00:01.000Z" in ox("dead", "list", "mail", "--utc").out
    both = ox("dead", "list", "mail", "--since", "1h", "--newer-than", "1h")
    assert (both.code, both.err) == (
        2,
        "oxcart: since must be left out where newer_than is given, got '1h'\n",
    )
    assert ox("dead", "show", "mail", "c", "--permanent", "--json").json["state"] == "failed"
    assert ox("dead", "replay", "mail", "c").code == 1
    assert ox("dead", "replay", "mail", "c", "--permanent").out == "c: will run again\n"
    die(clean, "d", category="permanent")
    assert ox("dead", "purge", "mail", "d", "--yes").code == 1
    assert ox("dead", "purge", "mail", "d", "--permanent", "--yes").out == "d: removed\n"
    die(clean, "e", category="permanent")
    die(clean, "f", category="cancelled")
    found = ox("dead", "replay", "mail", "--all", "--permanent", "--json").json
    assert sorted(found["ids"]) == ["a", "b", "e"]
    assert queue.counts()["failed"] == 1


def test_replay(ox: Commands, clean: ValkeyServer, queue: Queue) -> None:
    die(clean, "a", "b", "c", "d")
    assert ox("dead", "replay", "mail", "a").out == "a: will run again\n"
    ended = ox("dead", "replay", "mail", "a", "b", "--json")
    assert ended.code == 1
    assert [one["ok"] for one in ended.json] == [False, True]
    dry = ox("dead", "replay", "mail", "--all", "--dry-run")
    assert dry.out == "c\nd\nmail: 2 dead letters fit\n"
    assert ox("dead", "replay", "mail", "--all", "--limit", "1").out == "mail: 1 dead letter will run again\n"
    found = ox("dead", "replay", "mail", "--all", "--rate", "100", "--keep-attempts", "--json").json
    assert (found["matched"], found["done"], found["ids"]) == (1, 1, ["d"])
    kept = queue.jobs.get("d")
    assert kept is not None
    assert kept.attempts_made == 1
    assert queue.counts()["waiting"] == 4


def test_purge(ox: Commands, clean: ValkeyServer, queue: Queue) -> None:
    die(clean, "a", "b", "c")
    ended = ox("dead", "purge", "mail", "--all")
    assert (ended.code, ended.err) == (2, "oxcart: this cannot be undone: pass --yes\n")
    assert ox("dead", "purge", "mail", "--all", "--dry-run", "--json").json["matched"] == 3
    assert ox("dead", "purge", "mail", "a", "--yes").out == "a: removed\n"
    assert ox("dead", "purge", "mail", "--all", "-y").out == "mail: 2 dead letters removed\n"
    assert queue.counts()["failed"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "mail"], "name the dead letters, or pass --all"),
        (["replay", "mail", "a", "--all"], "name the dead letters, or pass --all"),
        (["replay", "mail", "a", "--limit", "1"], "go with --all"),
        (["replay", "mail", "--all", "--rate", "0"], "rate must be"),
        (["list", "mail", "--category", "odd"], "category must be one of"),
        (["list", "mail", "--tag", "x"], "a tag is NAME=VALUE"),
    ],
)
def test_wrong_usage_is_code_2(ox: Commands, arguments: list[str], message: str) -> None:
    ended = ox("dead", *arguments)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert message in ended.err
