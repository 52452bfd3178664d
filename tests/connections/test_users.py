"""The rights of a producer, a worker and an operator: those of docs/connections.md, and no more."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from oxcart import Flow, Queue, RunningJob, Worker
from oxcart.broker.bridge import scripts as bridge
from oxcart.broker.bullmq.scripts import load, verbs
from oxcart.broker.port import Ask
from oxcart.model.errors import AccessDenied
from tests.cli.conftest import Commands
from tests.connections.conftest import PASSWORD, login, make_user
from tests.servers import ValkeyServer

LIMIT = 60.0

#: The scripts that a producer runs; a worker and an operator run all.
PRODUCED = ("add", "add_flow", "add_graph", "release_window", "job_state")


@pytest.fixture(scope="module")
def guarded() -> Iterator[ValkeyServer]:
    """A server whose only users are the page's."""
    with ValkeyServer() as server:
        with server.client() as client:
            for role in ("producer", "worker", "operator"):
                make_user(client, role, role)
        yield server


@pytest.fixture
def admin(guarded: ValkeyServer) -> Iterator[Any]:
    with guarded.client() as client:
        client.flushall()
        yield client


def _url(server: ValkeyServer, role: str) -> str:
    return f"redis://{login(role)}127.0.0.1:{server.port}/0"


@pytest.fixture
async def producer(guarded: ValkeyServer, admin: Any) -> AsyncIterator[Queue]:
    async with Queue("q", url=_url(guarded, "producer")) as queue:
        yield queue


@pytest.fixture
async def workers(guarded: ValkeyServer, admin: Any) -> AsyncIterator[Queue]:
    async with Queue("q", url=_url(guarded, "worker")) as queue:

        @queue.fallback
        async def echo(job: RunningJob) -> Any:
            await job.log("seen")
            await job.update_progress(10)
            if job.data == "once more" and job.attempt == 1:
                raise RuntimeError("not yet")
            return job.data

        yield queue


async def test_a_producer_adds_jobs_of_every_kind_and_awaits_them(producer: Queue, workers: Queue) -> None:
    async with Worker(workers, concurrency=4).running():
        rows: list[Any] = [
            ("plain", 1, {}),
            ("later", 2, {"delay": 0.05}),
            ("first", 3, {"priority": 2}),
            ("last", 4, {"lifo": True}),
            ("once", 5, {"idempotency_key": "a"}),
            ("window", 6, {"deduplication": {"id": "w", "ttl": 1}}),
            ("again", "once more", {"attempts": 2, "backoff": 0.01}),
        ]
        handles = await producer.add_many(rows)
        assert [await handle.result(LIMIT) for handle in handles] == [row[1] for row in rows]
        tree = Flow(producer, "top", "p", children=[Flow(producer, "below", n) for n in range(3)])
        assert await (await tree.add()).result(LIMIT) == "p"
        assert (await handles[0].get()).return_value == 1
        assert await handles[0].state() == "completed"
        assert (await producer.counts())["completed"] == 11
        async with producer.events(since="0") as events:
            assert (await events.read(block=1))[0].name == "added"


async def test_a_producer_takes_no_jobs(producer: Queue, admin: Any) -> None:
    handle = await producer.add("job")
    before = admin.lrange("bull:q:wait", 0, -1)
    with pytest.raises(AccessDenied, match="claim: "):
        await producer._core.broker.claim(Ask(1))
    with pytest.raises(AccessDenied, match=r"connections\.md"):
        await producer._core.broker.recover(interval_ms=1)
    assert admin.lrange("bull:q:wait", 0, -1) == before == [handle.id], "nothing was half applied"
    assert admin.llen("bull:q:active") == 0


async def test_a_user_without_read_rights_drops_no_job(
    guarded: ValkeyServer, producer: Queue, admin: Any
) -> None:
    """A refusal must not look like an id without a job."""
    make_user(admin, "blind", "worker")
    admin.execute_command("ACL", "SETUSER", "blind", "-hgetall")
    await producer.add("job", priority=1)
    await producer.add("job")
    async with Queue("q", url=_url(guarded, "blind")) as queue:
        with pytest.raises(AccessDenied, match="hgetall"):
            await queue._core.broker.claim(Ask(5))
    assert (admin.llen("bull:q:wait"), admin.zcard("bull:q:prioritized")) == (1, 1)


@pytest.mark.parametrize("role", ["producer", "worker", "operator"])
def test_no_role_has_rights_that_it_does_not_need(guarded: ValkeyServer, admin: Any, role: str) -> None:
    admin.set("other:secret", "x")
    with guarded.client(username=role, password=PASSWORD) as client:
        for command in (
            ("FLUSHALL",),
            ("KEYS", "*"),
            ("CONFIG", "GET", "*"),
            ("SCRIPT", "FLUSH"),
            ("ACL", "LIST"),
            ("SHUTDOWN",),
            ("REPLICAOF", "NO", "ONE"),
            ("MONITOR",),
            ("PUBLISH", "channel", "x"),
            ("GET", "other:secret"),
            ("EVAL", "return redis.call('GET', 'other:secret')", "0"),
        ):
            with pytest.raises(redis.RedisError, match=r"permission|ACL failure"):
                client.execute_command(*command)


@pytest.mark.parametrize("role", ["producer", "worker", "operator"])
def test_every_command_of_a_roles_scripts_is_allowed(guarded: ValkeyServer, admin: Any, role: str) -> None:
    """Fails when a script uses a command that the page does not allow yet."""
    used: set[str] = set()
    scripts = [load(verb) for verb in (PRODUCED if role == "producer" else verbs())]
    scripts += [bridge.load(verb) for verb in (("add",) if role == "producer" else bridge.verbs())]
    for script in scripts:
        found = re.findall(r'(?:call|asked_of_slot)\(\s*"([A-Z]+)"', script.text.decode())
        used |= {name for name in found if name != "MSETEX"}  # used if available and allowed
    refused = {}
    for name in sorted(used):
        facts = admin.execute_command("COMMAND", "INFO", name)
        arity = next(iter(facts.values()))["arity"] if isinstance(facts, dict) else facts[0][1]
        if abs(arity) < 2 and name not in ("TIME", "PING"):
            continue
        words = ["STREAM", "bull:x"] if name == "XINFO" else ["bull:x"] * (abs(arity) - 1)
        answer = admin.execute_command("ACL", "DRYRUN", role, name, *words)
        if answer not in ("OK", b"OK", True):
            refused[name] = answer
    assert not refused


def test_an_operator_sees_and_steers_everything(guarded: ValkeyServer, admin: Any) -> None:
    ox = Commands(_url(guarded, "operator"))
    assert ox("add", "q", "job", "1").code == 0
    assert ox("queues", "--json").json[0]["counts"]["waiting"] == 1
    for command in (
        ("pause", "q"),
        ("resume", "q"),
        ("jobs", "q"),
        ("limits", "set", "q", "--concurrency", "2"),
        ("limits", "show", "q"),
        ("clean", "q", "--state", "completed"),
        ("trim-events", "q", "--keep", "5"),
        ("orphans", "q"),
        ("priorities", "q"),
        ("clear", "q", "--yes"),
        ("obliterate", "q", "--yes"),
    ):
        ended = ox(*command)
        assert ended.code == 0, (command, ended)
    assert ox("doctor", "--json").code in (0, 1)


async def test_a_wrong_password_raises_at_once_and_is_not_repeated(guarded: ValkeyServer) -> None:
    async with Queue("q", url=f"redis://worker:wrong-one@127.0.0.1:{guarded.port}") as queue:
        with pytest.raises(AccessDenied, match="does not let us in") as caught:
            await queue.add("job")
    assert "wrong-one" not in str(caught.value)
