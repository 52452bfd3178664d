"""``oxcart doctor``: what it reports, and what it repairs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from oxcart import Queue, Worker
from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.connection import Server
from oxcart.cli import checks
from tests.cli.conftest import Commands
from tests.servers import ValkeyCluster, ValkeyServer


def levels(document: dict[str, Any]) -> dict[str, str]:
    return {finding["name"]: finding["level"] for finding in document["findings"]}


@pytest.fixture
def client(clean: ValkeyServer) -> Iterator[Any]:
    with contextlib.closing(clean.client()) as client:
        yield client


async def _set_clock(queue: Queue, skew_ms: int) -> None:
    """Rewrites the heartbeat of the queue's worker as if its machine's clock were so far ahead."""
    broker = queue._core.broker
    (record,) = await broker.workers()
    clock = record.last_seen + skew_ms
    if isinstance(broker, BullMQBroker):
        key, path = broker.keys.worker(record.id), "clock"
    else:
        assert isinstance(broker, BridgeBroker)
        key, path = broker.keys.worker(record.id), "ox"
    written = msgspec.json.decode(await broker.caller.command("GET", key))
    if path == "ox":
        written["ox"]["clock"] = clock
    else:
        written["clock"] = clock
    await broker.caller.command("SET", key, msgspec.json.encode(written), "PX", 30_000)


class TestFindings:
    def test_a_sound_server(self, ox: Commands, client: Any) -> None:
        client.config_set("appendonly", "yes")
        try:
            ended = ox("doctor", "--json")
        finally:
            client.config_set("appendonly", "no")
        assert ended.code == 0
        assert ended.json["healthy"] is True
        assert set(levels(ended.json).values()) == {"ok"}
        shown = ox("doctor").out
        for text in ("oxcart", "Valkey", "noeviction", "round trip"):
            assert text in shown

    def test_eviction_is_a_problem(self, ox: Commands, client: Any) -> None:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            ended = ox("doctor", "--json")
        finally:
            client.config_set("maxmemory-policy", "noeviction")
        assert ended.code == 1
        assert levels(ended.json)["maxmemory-policy"] == "problem"
        assert ended.json["healthy"] is False

    def test_jobs_that_no_worker_fits_are_a_warning(self, ox: Commands) -> None:
        ox("add", "video", "render", "--target", "all;c=gpu")
        ended = ox("doctor", "--json")
        assert levels(ended.json)["unroutable in video"] == "warning"
        assert "1 jobs ask for all;c=gpu" in ox("doctor").out

    def test_no_persistence_is_a_warning(self, ox: Commands) -> None:
        ended = ox("doctor", "--json")
        assert ended.code == 0
        assert levels(ended.json)["persistence"] == "warning"

    def test_peers_and_connections(self, ox: Commands, client: Any, clean: ValkeyServer) -> None:
        for queue, version in (("new", "bullmq:6.7.0"), ("same", "bullmq:5.62.0"), ("old", "bullmq:5.1.0")):
            client.hset(f"bull:{queue}:meta", "version", version)

        async def look() -> Any:
            async with Queue("same", url=clean.url) as queue:
                queue.fallback(lambda: None)
                async with Worker(queue).running() as worker:
                    while not worker.is_connected:
                        await asyncio.sleep(0.01)
                    return await asyncio.to_thread(ox, "doctor", "--json")

        ended = asyncio.run(look())
        found = levels(ended.json)
        assert found["peer bullmq:6.7.0"] == "note"
        assert found["peer bullmq:5.62.0"] == "ok"
        assert found["peer bullmq:5.1.0"] == "warning"
        details = {finding["name"]: finding["detail"] for finding in ended.json["findings"]}
        assert details["workers"] == "1 on same"
        assert details["queues"] == "new, old, same"

    @pytest.mark.parametrize(
        ("info", "level"),
        [
            ({"redis_version": "7.2.4", "valkey_version": "9.1.0"}, "ok"),
            ({"redis_version": "6.2.0"}, "ok"),
            ({"redis_version": "6.0.16"}, "problem"),
            ({}, "problem"),
        ],
    )
    def test_versions(self, info: dict[str, str], level: str) -> None:
        assert checks.server_version(info).level == level

    @pytest.mark.parametrize(
        ("skew", "round_trip", "level"),
        [(0.001, 0.01, "ok"), (-0.7, 0.01, "warning"), (7.0, 0.01, "problem"), (0.7, 2.0, "ok")],
    )
    def test_clocks(self, skew: float, round_trip: float, level: str) -> None:
        assert checks.judge_skew(skew, round_trip).level == level

    @pytest.mark.parametrize("namespace", [None, "ns"])
    def test_clocks_of_workers(self, ox: Commands, clean: ValkeyServer, namespace: str | None) -> None:
        protocol: dict[str, Any] = {"protocol": "bridge", "namespace": namespace} if namespace else {}
        command = ("--namespace", namespace) if namespace else ()

        async def look(skew_ms: int) -> tuple[Any, Any, str]:
            async with Queue("mail", url=clean.url, **protocol) as queue:
                queue.fallback(lambda: None)
                async with Worker(queue, name="w1").running() as worker:
                    while not await queue.workers.list():
                        await asyncio.sleep(0.01)
                    await _set_clock(queue, skew_ms)
                    doctor = await asyncio.to_thread(ox, *command, "doctor", "--json")
                    listed = (await asyncio.to_thread(ox, *command, "workers", "--json")).json
                    table = (await asyncio.to_thread(ox, *command, "workers")).out
                    assert worker.is_connected
            return doctor, listed, table

        doctor, listed, table = asyncio.run(look(0))
        assert levels(doctor.json)["clocks of workers"] == "ok"
        assert "clock" not in table
        doctor, listed, table = asyncio.run(look(-7_200_000))
        assert doctor.code == 1
        details = {finding["name"]: finding["detail"] for finding in doctor.json["findings"]}
        assert details["clock of worker w1"].endswith("is 7,200.0 s behind the server's")
        assert [one["skew_ms"] for one in listed] == [-7_200_000]
        assert "clock" in table
        assert "behind" in table

    @pytest.mark.parametrize(
        ("info", "level"),
        [
            ({"aof_enabled": "1"}, "ok"),
            ({"aof_enabled": "1", "aof_last_write_status": "err"}, "problem"),
            ({"rdb_saves": "3", "rdb_last_save_time": "1", "rdb_changes_since_last_save": "5"}, "warning"),
            ({"rdb_last_bgsave_status": "err"}, "problem"),
            ({}, "warning"),
        ],
    )
    def test_persistence(self, info: dict[str, str], level: str) -> None:
        assert checks.persistence(info).level == level

    def test_memory_and_role(self) -> None:
        for used, level in (("50", "ok"), ("90", "warning"), ("99", "problem")):
            assert checks.memory({"used_memory": used, "maxmemory": "100"}).level == level
        assert checks.role({"role": "slave"}).level == "problem"

    @pytest.mark.parametrize(
        ("name", "found"),
        [
            ("bull:bWFpbA==:w:bob", ("mail", "worker")),
            ("bull:bWFpbA==", ("mail", "worker")),
            ("bull:bWFpbA==:qe", ("mail", "events")),
            ("bull:plain_name:w:x", ("plain_name", "worker")),
            ("other:bWFpbA==", ("", "")),
            ("", ("", "")),
        ],
    )
    def test_connection_names(self, name: str, found: tuple[str, str]) -> None:
        assert checks.client_queue(name, "bull") == found


class TestRescue:
    def lose(self, client: Any, queue: str = "mail") -> None:
        """Does what a resume of an older peer does: renames a list onto a list that is not empty."""
        client.lpush(f"bull:{queue}:other", "x")
        client.rename(f"bull:{queue}:other", f"bull:{queue}:wait")
        client.delete(f"bull:{queue}:wait", f"bull:{queue}:marker")

    def test_lost_jobs_come_back_oldest_first(self, ox: Commands, client: Any) -> None:
        for number in range(5):
            ox("add", "mail", "hello", "--job-id", f"job{number}")
        ox("add", "mail", "hello", "--job-id", "urgent", "--priority", "5")
        self.lose(client)
        client.zrem("bull:mail:prioritized", "urgent")
        ox("add", "mail", "hello", "--job-id", "young")
        ox("add", "mail", "hello", "--job-id", "later", "--delay", "1h")
        looked = ox("doctor", "--rescue", "--dry-run", "--json")
        lost = ["job0", "job1", "job2", "job3", "job4", "urgent"]
        assert sorted(looked.json["rescue"]["queues"]["mail"]["rescued"]) == lost
        assert client.lrange("bull:mail:wait", 0, -1) == ["young"]
        client.delete("bull:mail:marker")

        ended = ox("doctor", "--rescue", "--queue", "mail", "--json")
        assert ended.code == 0
        report = ended.json["rescue"]["queues"]["mail"]
        assert (report["looked_at"], sorted(report["rescued"])) == (8, lost)
        assert client.lrange("bull:mail:wait", 0, -1) == ["young", "job4", "job3", "job2", "job1", "job0"]
        assert client.zrange("bull:mail:prioritized", 0, -1) == ["urgent"]
        assert client.zscore("bull:mail:marker", "0") == 0
        events = [entry[1] for entry in client.xrange("bull:mail:events") if "prev" not in entry[1]]
        waiting = [event["jobId"] for event in events if event["event"] == "waiting"]
        assert sorted(waiting[-6:]) == lost
        again = ox("doctor", "--rescue")
        assert "mail: 8 jobs looked at, none lost" in again.out

    def test_a_paused_queue_stays_paused(self, ox: Commands, client: Any) -> None:
        ox("add", "mail", "hello", "--job-id", "a")
        ox("pause", "mail")
        client.delete("bull:mail:paused")
        assert "1 put back: a" in ox("doctor", "--rescue").out
        assert client.lrange("bull:mail:paused", 0, -1) == ["a"]
        assert not client.exists("bull:mail:wait", "bull:mail:marker")

    def test_rescue_leaves_leased_and_ended_jobs_alone(self, ox: Commands, client: Any) -> None:
        ox("add", "mail", "hello", "--job-id", "held")
        ox("add", "mail", "hello", "--job-id", "done")
        self.lose(client)
        client.set("bull:mail:held:lock", "token")
        client.hset("bull:mail:done", mapping={"finishedOn": 1, "returnvalue": "1"})
        client.hset("bull:mail:repeat:nightly", mapping={"name": "n", "opts": "{}", "ic": 1})
        client.hset("bull:mail:dn:x", mapping={"name": "n", "data": "1", "opts": "{}"})
        client.hset("bull:mail:metrics:completed", "count", 5)
        client.rpush("bull:mail:held:logs", "x")
        report = ox("doctor", "--rescue", "--json").json["rescue"]["queues"]["mail"]
        assert report == {"looked_at": 2, "rescued": [], "leased": ["held"], "ended": ["done"]}
        assert not client.exists("bull:mail:wait")
        shown = ox("doctor", "--rescue").out
        assert "1 in no list but leased" in shown
        assert "1 that have ended are in no list" in shown

    def test_the_script_alone_decides(self, client: Any, clean: ValkeyServer) -> None:
        """The script finds the state of a job that moved after the scan."""

        async def move() -> list[str]:
            async with Queue("mail", url=clean.url) as queue:
                job = await queue.add("hello", job_id="a")
                client.delete("bull:mail:wait")
                rescue = queue._core.broker.rescue
                assert rescue is not None

                def moved(progress: Any) -> None:
                    if progress.step == "looking for jobs":
                        client.lrem("bull:mail:active", 0, job.id)
                        client.lpush("bull:mail:active", job.id)

                return (await rescue.run(progress=moved)).rescued

        assert asyncio.run(move()) == []

    def test_many_jobs_in_many_steps(self, client: Any, clean: ValkeyServer) -> None:
        async def lose_and_find() -> tuple[int, int]:
            async with Queue("mail", url=clean.url) as queue:
                await queue.add_many([("hello", number) for number in range(5000)])
                ids = client.lrange("bull:mail:wait", 0, -1)
                client.ltrim("bull:mail:wait", 0, 1999)
                steps: list[Any] = []
                rescue = queue._core.broker.rescue
                assert rescue is not None
                found = await rescue.run(progress=steps.append)
                assert sorted(found.rescued) == sorted(ids[2000:])
                assert sorted(client.lrange("bull:mail:wait", 0, -1)) == sorted(ids)
                return found.looked_at, len(steps)

        looked_at, steps = asyncio.run(lose_and_find())
        assert looked_at == 5000
        assert steps > 7

    def test_dry_run_needs_rescue(self, ox: Commands) -> None:
        assert ox("doctor", "--dry-run").code == 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(node_timeout=15_000) as cluster:
        yield cluster


class TestCluster:
    def test_every_master_is_looked_at(self, cluster: ValkeyCluster) -> None:
        ox = Commands(cluster.url)
        names = [f"queue{number}" for number in range(12)]
        for name in names:
            assert ox("add", name, "hello", "--job-id", "a").code == 0
        ox("add", "tagged", "x", "--prefix", "{shop}")
        found = ox("queues", "--json").json
        assert [row["queue"] for row in found] == sorted(names)
        assert all(row["counts"]["waiting"] == 1 for row in found)
        assert [row["queue"] for row in ox("queues", "--json", "--prefix", "{shop}").json] == ["tagged"]
        ended = ox("doctor", "--json")
        assert ended.code == 0
        assert sum(name.startswith("maxmemory-policy of node") for name in levels(ended.json)) == 3

    def test_jobs_are_rescued(self, cluster: ValkeyCluster) -> None:
        ox = Commands(cluster.url)
        ox("add", "lost", "hello", "--job-id", "a")
        with contextlib.closing(cluster.client()) as client:
            client.delete("bull:{lost}:wait")
            report = ox("doctor", "--rescue", "--queue", "lost", "--json").json["rescue"]["queues"]["lost"]
            assert report["rescued"] == ["a"]
            assert client.lrange("bull:{lost}:wait", 0, -1) == ["a"]


def test_the_server_object_is_named_without_secrets() -> None:
    assert "secret" not in Server("redis://:secret@host:1/0").name
