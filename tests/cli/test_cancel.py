"""``oxcart cancel``: its output and exit codes."""

from __future__ import annotations

import pytest

from oxcart.sync import Queue
from tests.cli.conftest import Commands
from tests.servers import ValkeyServer


@pytest.fixture
def queue(clean: ValkeyServer) -> Queue:
    return Queue("mail", url=clean.url)


def test_cancel_by_id(ox: Commands, queue: Queue) -> None:
    queue.add("n", job_id="a")
    queue.add("n", job_id="b")
    assert ox("cancel", "mail", "a", "--reason", "no").out == "a: cancelled\n"
    job = queue.jobs.get("a")
    assert job is not None
    assert job.failed_reason == "no"
    ended = ox("cancel", "mail", "a", "b", "--json")
    assert ended.code == 1
    assert [one["ok"] for one in ended.json] == [False, True]
    assert ended.json[1]["state"] == "cancelled"


def test_cancel_all_matching_jobs(ox: Commands, queue: Queue) -> None:
    for name in ("odd", "even", "odd"):
        queue.add(name)
    dry = ox("cancel", "mail", "--all", "--name", "odd", "--dry-run")
    assert dry.out.endswith("mail: 2 would be cancelled\n")
    assert queue.counts()["waiting"] == 3
    assert ox("cancel", "mail", "--all", "--name", "odd").out == "mail: 2 cancelled, 0 asked to end\n"
    found = ox("cancel", "mail", "--all", "--json").json
    assert (found["queue"], found["matched"], found["cancelled"]) == ("mail", 1, 1)


def test_cancel_all_jobs_with_a_tag(ox: Commands, queue: Queue) -> None:
    ox("add", "mail", "n", "--tag", "tenant=acme", "--tag", "plan=pro", "--correlation-id", "c-1")
    ox("add", "mail", "n", "--callback-url", "https://example.com/hook")
    assert ox("add", "mail", "n", "--callback-url", "http://localhost/").code == 2
    (found,) = ox("cancel", "mail", "--all", "--tag", "tenant=acme", "--json").json["ids"]
    job = queue.jobs.get(found)
    assert job is not None
    assert (job.tags, job.correlation_id) == ({"tenant": "acme", "plan": "pro"}, "c-1")
    assert queue.counts()["waiting"] == 1


def test_jobs_of_a_peer_are_reported(ox: Commands, queue: Queue, clean: ValkeyServer) -> None:
    queue.add("n", job_id="a")
    with clean.client() as client:
        client.lmove("bull:mail:wait", "bull:mail:active")
        client.set("bull:mail:a:lock", "node:1")
    ended = ox("cancel", "mail", "--all")
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "1 run in workers of peers" in ended.err
    assert ox("cancel", "mail", "a", "--force").out == "a: cancelled\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the jobs to cancel, or pass --all"),
        (["a", "--all"], "name the jobs to cancel, or pass --all"),
        (["a", "--dry-run"], "go with --all"),
        (["--all", "--tag", "x"], "a tag is NAME=VALUE"),
        (["--all", "--state", "lost"], "state must be one of"),
        (["--all", "--older-than", "soon"], "older_than must be"),
    ],
)
def test_wrong_usage_is_code_2(ox: Commands, arguments: list[str], message: str) -> None:
    ended = ox("cancel", "mail", *arguments)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert message in ended.err
