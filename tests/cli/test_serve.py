"""``oxcart serve`` as a program: it listens, serves, and ends when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from oxcart import Queue
from tests.cli.conftest import Commands, Program
from tests.servers import ValkeyServer, free_port

Start = Callable[..., Program]


def address(program: Program) -> str:
    found = re.search(r"http://[^,\s]+", program.wait_for("HTTP API on http"))
    assert found is not None
    return found[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_a_signal_ends_it(start: Start, number: signal.Signals) -> None:
    program = start("serve", "--port", "0", "--queues", "emails,video", "--type", "welcome=emails")
    with httpx.Client(base_url=address(program), timeout=60) as client:
        job = client.post("/api/v1/jobs", json={"type": "welcome"}).json()
        assert (job["queue"], job["state"], job["priority"]) == ("emails", "scheduled", 2)
        with client.stream("GET", "/api/v1/events") as events:
            lines = events.iter_lines()
            assert next(lines).startswith("id: ")
            assert program.end(number) == 0
            assert list(lines)  # the stream ends instead of breaking off
    assert "Traceback" not in "\n".join(program.seen)


def test_serves_the_queues_that_exist(ox: Commands, start: Start) -> None:
    assert ox("add", "emails", "welcome", "{}").code == 0
    program = start("serve", "--port", "0")
    names = [
        row["name"] for row in httpx.get(f"{address(program)}/api/v1/queues", timeout=60).json()["queues"]
    ]
    assert names == ["emails"]


def test_serves_queues_that_are_made_later(ox: Commands, start: Start) -> None:
    program = start("serve", "--port", "0")
    with httpx.Client(base_url=address(program), timeout=60) as client:
        names = [row["name"] for row in client.get("/api/v1/queues").json()["queues"]]
        assert names == ["default"]
        assert client.get("/").status_code == 200
        assert ox("add", "emails", "welcome", "{}").code == 0
        program.wait_for("queue emails is served")
        names = [row["name"] for row in client.get("/api/v1/queues").json()["queues"]]
        assert names == ["default", "emails"]
        assert client.get("/api/v1/stats").json()["queue"]["scheduled"] == 1
        assert client.post("/api/v1/jobs", json={"type": "emails"}).json()["queue"] == "emails"
        assert 'data-key="emails"' in client.get("/").text
        assert "emails" in client.get("/metrics").text


@pytest.mark.parametrize("named", [(), ("--queues", "events,q")])
def test_serves_partitions_as_one_queue(ox: Commands, start: Start, named: tuple[str, ...]) -> None:
    assert ox("add", "q", "welcome", "{}").code == 0

    async def add() -> None:
        async with Queue("events", url=ox.url, partitions=4) as events:
            await events.add_many([("t", None, {"partition_key": f"k{number}"}) for number in range(20)])

    asyncio.run(add())
    program = start("serve", "--port", "0", *named)
    rows = httpx.get(f"{address(program)}/api/v1/queues", timeout=60).json()["queues"]
    assert {row["name"]: row["counts"]["waiting"] for row in rows} == {"events": 20, "q": 1}


def test_tokens_come_from_a_file_or_the_environment(start: Start, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("admin:the-token-of-the-file\n")
    program = start(
        "serve",
        "--port",
        "0",
        "--queues",
        "q",
        "--token-file",
        "tokens",
        OXCART_TOKENS="observer:the-token-to-read submitter@q:the-token-to-submit",
    )
    url = address(program)
    for token, status in (
        ("", 401),
        ("the-token-to-read", 403),
        ("the-token-to-submit", 403),
        ("the-token-of-the-file", 200),
    ):
        answer = httpx.post(f"{url}/api/v1/queues/q/pause", headers={"X-API-Key": token}, timeout=60)
        assert answer.status_code == status
    assert "the-token" not in "\n".join(program.seen)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--queues", "q", "--host", "0.0.0.0"], "host must be"),
        (["--queues", "q", "--token", "observer:short"], "at least 16 characters"),
        (["--queues", "q", "--type", "welcome"], "TYPE=QUEUE"),
        (["--queues", "q", "--default", "other"], "default must be"),
        (["--queues", "q", "--lifetime", "soon"], "lifetime must be"),
    ],
)
def test_wrong_usage_is_named(ox: Commands, arguments: list[str], words: str) -> None:
    ended = ox("serve", "--port", "0", *arguments)
    assert (ended.code, words in ended.err) == (2, True), ended


APP = """
from oxcart import Queue
from oxcart.sync import Queue as SyncQueue

mails = Queue("mails", prefix="own", attempts=7)
events = Queue("events", partitions=4)
video = Queue("video", protocol="bridge", namespace="studio")
jobs = SyncQueue("jobs", priorities="formal")
remote = Queue("far", url="http://127.0.0.1:9")
all = [mails, events, video, jobs]
"""


def test_serves_the_queues_of_an_application_as_it_makes_them(
    ox: Commands, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    program = start("serve", "--port", "0", "--app", "shop:all")
    with httpx.Client(base_url=address(program), timeout=60) as client:
        made = {
            name: [client.post("/api/v1/jobs", json={"type": "t", "queue": name}).json() for _ in range(12)]
            for name in ("mails", "events", "video", "jobs")
        }
    assert (made["mails"][0]["max_attempts"], made["mails"][0]["priority"]) == (7, 0)
    assert made["jobs"][0]["priority"] == 2

    async def look() -> dict[str, int]:
        queues = [
            Queue("mails", url=ox.url, prefix="own"),
            Queue("events", url=ox.url, partitions=4),
            Queue("video", url=ox.url, protocol="bridge", namespace="studio"),
            Queue("jobs", url=ox.url),
        ]
        found = {}
        for queue in queues:
            async with queue:
                found[queue.name] = sum((await queue.counts()).values())
        return found

    assert asyncio.run(look()) == dict.fromkeys(made, 12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--app", "shop:all", "--queues", "q"], "exclude each other"),
        (["--app", "shop:remote"], "none that can be served"),
        (["--app", "shop:nothing"], "has no 'nothing'"),
    ],
)
def test_wrong_applications_are_named(
    ox: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OXCART_URL", str(ox.url))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    ended = ox("serve", "--port", "0", *arguments)
    assert (ended.code, words in ended.err) == (2, True), ended


@pytest.mark.parametrize("named", [(), ("--queues", "default")])
def test_serves_the_partitions_that_a_queue_gets_later(
    ox: Commands, start: Start, named: tuple[str, ...]
) -> None:
    program = start("serve", "--port", "0", *named)

    async def make() -> None:
        async with Queue("default", url=ox.url, partitions=4) as made:
            await made.add("t")

    async def counts() -> tuple[int, int]:
        async with Queue("default", url=ox.url, partitions=4) as made, Queue("default", url=ox.url) as plain:
            return sum((await made.counts()).values()), sum((await plain.counts()).values())

    with httpx.Client(base_url=address(program), timeout=60) as client:
        assert client.post("/api/v1/jobs", json={"type": "t"}).status_code == 201
        assert client.get("/").status_code == 200
        asyncio.run(make())
        program.wait_for("queue default is served with its partitions")
        program.wait_for("1 jobs were added to queue default before it had partitions")
        assert client.post("/api/v1/jobs", json={"type": "t"}).status_code == 201
        assert asyncio.run(counts()) == (2, 1)
        assert sum(client.get("/api/v1/queues/default").json()["counts"].values()) == 2
        assert client.get("/").status_code == 200


def test_a_queue_of_a_peer_with_a_hash_tag_is_served_and_does_not_end_the_search(
    ox: Commands, start: Start, clean: ValkeyServer
) -> None:
    program = start("serve", "--port", "0")
    url = address(program)
    with contextlib.closing(clean.client()) as client:
        client.hset("bull:{x}#0:meta", "version", "bullmq:5.62.0")
    program.wait_for("queue {x}#0 is served")
    assert ox("add", "emails", "welcome", "{}").code == 0
    program.wait_for("queue emails is served")
    names = {row["name"] for row in httpx.get(f"{url}/api/v1/queues", timeout=60).json()["queues"]}
    assert names == {"default", "emails", "{x}#0"}


def test_serves_an_application_on_the_server_of_the_global_option(
    start: Start, clean: ValkeyServer, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text("from oxcart import Queue\nmails = Queue('mails')\n")
    elsewhere = f"redis://127.0.0.1:{free_port()}"
    program = start(
        "--server", clean.url, "serve", "--port", "0", "--app", "shop:mails", OXCART_URL=elsewhere
    )
    answer = httpx.post(f"{address(program)}/api/v1/jobs", json={"type": "t"}, timeout=60)
    assert answer.status_code == 201


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "--port", "0", "--app", "shop:mails"),
        ("serve", "--port", "0"),
        ("work", "shop:mails"),
        ("up", "--app", "shop:mails", "--no-pipeline"),
        ("pipeline", "tail"),
    ],
)
def test_several_servers_are_refused(
    ox: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OXCART_URL", str(ox.url))
    ended = ox("--server", "redis://127.0.0.1:1", "--server", "redis://127.0.0.1:2", *command)
    assert (ended.code, "several --server" in ended.err) == (2, True), ended


def test_the_pipeline_reads_the_server_of_the_global_option(
    clean: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OXCART_URL", "")
    assert Commands(clean.url)("add", "emails", "welcome", "{}").code == 0
    elsewhere = Commands(f"redis://127.0.0.1:{free_port()}")
    ended = elsewhere("--server", clean.url, "pipeline", "attach")
    assert (ended.code, "emails" in ended.out) == (0, True), ended
