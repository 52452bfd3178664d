"""The commands on a Bridge namespace: effects, output and exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from oxcart.sync import Queue
from tests.broker.bridge.typescript import TypeScriptClient
from tests.cli.conftest import Commands
from tests.servers import ValkeyServer


@pytest.fixture
def queue(clean: ValkeyServer) -> Iterator[Queue]:
    with Queue("email", url=clean.url, protocol="bridge", namespace="bridge") as queue:
        yield queue


def test_a_namespace_at_a_glance(ox: Commands, queue: Queue, clean: ValkeyServer) -> None:
    queue.add("email", {})
    queue.add("email", {}, delay="1h")
    with clean.client() as client:
        client.sadd("bridge:workers:active", "worker-1")
    seen = ox("namespace", "--json")
    assert seen.code == 0
    assert (seen.json["waiting"], seen.json["delayed"], seen.json["active"], seen.json["dead"]) == (
        1,
        1,
        0,
        0,
    )
    assert [(one["id"], one["alive"]) for one in seen.json["workers"]] == [("worker-1", False)]
    assert "worker-1" in ox("namespace").out
    assert ox("--namespace", "other", "namespace", "--json").json["waiting"] == 0


def test_queues_are_its_job_types(ox: Commands, queue: Queue) -> None:
    job = queue.add("email", {"to": "ada"})
    (row,) = ox("queues", "--namespace", "bridge", "--json").json
    assert (row["queue"], row["counts"]["waiting"]) == ("email", 1)
    assert ox("queues", "--json").json == [], "BullMQ's are others"
    assert ox("pause", "email", "--namespace=bridge").code == 0
    assert ox("queues", "--namespace", "bridge", "--json").json[0]["paused"]
    shown = ox("job", "email", job.id, "--namespace", "bridge", "--json")
    assert shown.code == 0
    assert shown.json["data"] == {"to": "ada"}
    assert ox("remove", "email", job.id, "--yes", "--namespace", "bridge").code in (0, 2)


def test_an_unsupported_feature_is_an_error(ox: Commands, queue: Queue) -> None:
    refused = ox("metrics", "email", "--namespace", "bridge")
    assert refused.code != 0
    assert "bridge protocol does not support" in refused.err


@pytest.fixture
def foreign(clean: ValkeyServer) -> Iterator[TypeScriptClient]:
    """A worker of another client, in a namespace that no worker of ours has served."""
    with clean.client() as client:
        yield TypeScriptClient(client, "node-1", namespace="wk", capabilities=("gpu",))


def dispatch(client: TypeScriptClient, job_id: str, job_type: str = "email", **fields: Any) -> str:
    record = {"jobId": job_id, "type": job_type, "payload": {}, "retry": {"attempts": 0}, "attempts": 0}
    client.store.set(client.key("jobs", "data", job_id), json.dumps(record | fields))
    client.store.set(client.key("jobs", "status", job_id), "waiting")
    client.store.rpush(client.key("jobs", "waiting"), job_id)
    return job_id


def test_workers_of_a_namespace_are_listed(ox: Commands, foreign: TypeScriptClient) -> None:
    assert ox("--namespace", "wk", "workers").out == "no workers\n"
    foreign.register()
    (one,) = ox("--namespace", "wk", "workers", "--json").json
    assert (one["id"], one["capabilities"], one["stack"]) == ("node-1", ["gpu"], ["node"])
    assert "node-1" in ox("--namespace", "wk", "workers").out
    assert "node-1" in ox("--namespace", "wk", "workers", "email").out, "it may take any type"
    foreign.store.set("wk:workers:node-1", "{}")
    assert ox("--namespace", "wk", "workers", "--json").json == [], "no sign of life"


def test_unroutable_jobs_of_a_namespace_are_listed(ox: Commands, foreign: TypeScriptClient) -> None:
    lost = dispatch(foreign, "lost", target={"capabilities": ["tpu"]})
    dispatch(foreign, "fits", target={"capabilities": ["gpu"]})
    dispatch(foreign, "plain")
    foreign.register()
    (one,) = ox("--namespace", "wk", "jobs", "email", "--unroutable", "--json").json
    assert (one["id"], one["lane"]) == (lost, "any;c=tpu")
    found = {one["name"]: one for one in ox("--namespace", "wk", "doctor", "--json").json["findings"]}
    assert found["unroutable in email"]["level"] == "warning"
    assert "any;c=tpu" in found["unroutable in email"]["detail"]


def test_a_namespace_that_no_worker_of_ours_has_served_is_seen(
    ox: Commands, foreign: TypeScriptClient
) -> None:
    for name in ("done", "failed", "waits"):
        dispatch(foreign, name)
    dispatch(foreign, "v", "video")
    done, failed = foreign.take(), foreign.take()
    assert done is not None
    assert failed is not None
    foreign.complete(done, "well")
    foreign.fail(failed)
    rows = {row["queue"]: row["counts"] for row in ox("--namespace", "wk", "queues", "--json").json}
    assert set(rows) == {"email", "video"}
    assert (rows["email"]["waiting"], rows["email"]["completed"], rows["email"]["failed"]) == (1, 1, 1)
    listed = {one["id"]: one["state"] for one in ox("--namespace", "wk", "jobs", "email", "--json").json}
    assert listed == {"waits": "scheduled", "done": "completed", "failed": "failed"}
    assert "waits" in ox("--namespace", "wk", "jobs", "email").out


def test_the_doctor_examines_a_namespace(ox: Commands, foreign: TypeScriptClient) -> None:
    dispatch(foreign, "failed")
    foreign.register()
    job = foreign.take()
    assert job is not None
    foreign.fail(job)
    foreign.store.sadd("wk:workers:active", "long-gone")
    foreign.store.sadd("wk:queues:paused", "video")
    foreign.store.rpush("wk:jobs:waiting", "no-record")
    seen = ox("--namespace", "wk", "doctor", "--json")
    found = {one["name"]: one["detail"] for one in seen.json["findings"]}
    assert found["namespace"] == "wk"
    assert found["job types"] == "email, video"
    assert found["workers"] == "node-1"
    assert "long-gone" in found["workers that are gone"]
    assert "1" in found["dead letters"]
    assert found["paused video"]
    assert "1 entries" in found["entries without a record"]
    assert "queues" not in found


def test_the_doctor_rescues_lost_jobs_of_a_namespace(ox: Commands, foreign: TypeScriptClient) -> None:
    dispatch(foreign, "lost")
    dispatch(foreign, "held")
    assert foreign.take() is not None
    foreign.store.delete("wk:jobs:lock:lost")
    assert foreign.take() is not None
    dry = ox("--namespace", "wk", "doctor", "--rescue", "--dry-run", "--json").json["rescue"]
    assert dry["queues"]["email"] == {"looked_at": 2, "rescued": ["lost"], "leased": ["held"], "ended": []}
    assert foreign.store.llen("wk:jobs:waiting") == 0
    ended = ox("--namespace", "wk", "doctor", "--rescue", "--queue", "email")
    assert "email: 2 jobs looked at, 1 put back: lost; 1 in no list but leased" in ended.out
    assert foreign.store.lrange("wk:jobs:waiting", 0, -1) == ["lost"]


def test_jobs_of_a_namespace_are_cancelled_and_removed_in_bulk(ox: Commands, queue: Queue) -> None:
    one = queue.add("email", {})
    queue.add_many([("email", n) for n in range(3)], tags={"tenant": "acme"})
    assert ox("--namespace", "bridge", "cancel", "email", one.id).code == 0
    done = ox("--namespace", "bridge", "cancel", "email", "--all", "--tag", "tenant=acme", "--json")
    assert done.json["cancelled"] == 3
    queue.add("email", {}, delay="1h")
    assert ox("--namespace", "bridge", "promote", "email", "--all", "--json").json["promoted"] == 1
    assert ox("--namespace", "bridge", "priorities", "email", "--json").json == [{"priority": 5, "jobs": 1}]
    assert ox("--namespace", "bridge", "clear", "email", "--yes", "--json").json["removed"] == 1
    assert ox("--namespace", "bridge", "retry", "email", "--all-failed", "--json").json["retried"] == 4
    assert (
        ox("--namespace", "bridge", "clean", "email", "--state", "waiting", "-y", "--json").json["removed"]
        == 4
    )
    assert ox("--namespace", "bridge", "obliterate", "email", "--yes").code == 0
    assert ox("--namespace", "bridge", "queues", "--json").json == []


def test_options_of_the_protocol_have_flags(ox: Commands, queue: Queue, clean: ValkeyServer) -> None:
    first = queue.add("email", {})
    added = ox("--namespace", "bridge", "add", "email", "email", "--after", first.id,
               "--skip-on", "ValueError", "--skip-on", "KeyError", "--reroute-on", "MemoryError",
               "--priority", "9", "--json",
               "--rate-limit", '{"max_concurrent": 4, "max_per_minute": 100}')  # fmt: skip
    assert added.code == 0
    with clean.client() as client:
        record = json.loads(str(client.get(f"bridge:jobs:data:{added.json['id']}")))
    assert record["dependsOn"] == [first.id]
    assert record["rateLimit"] == {"maxConcurrent": 4, "maxPerMinute": 100}
    assert (record["retry"]["skipOn"], record["retry"]["rerouteOn"]) == (
        ["ValueError", "KeyError"],
        ["MemoryError"],
    )
    assert record["priority"] == 9
    refused = ox("add", "mail", "send", "--skip-on", "ValueError")
    assert "bullmq protocol does not support" in refused.err
    help_text = " ".join(ox("add", "--help").out.split())
    assert "With --namespace 1 to 10, of which 10 runs first" in help_text


def test_schedules_of_a_namespace(ox: Commands, queue: Queue, clean: ValkeyServer) -> None:
    made = ox("--namespace", "bridge", "schedules", "add", "email", "digest", "--cron", "0 7 * * *",
              "--missed", "all", "--overlap", "queue", "--tag", "tenant=acme", "--target", "c=gpu",
              "--json")  # fmt: skip
    assert made.code == 0
    assert made.json["options"] == {"missed": "all", "overlap": "queue"}
    assert made.json["next_job_id"] is None, "a run gets its id when it is made"
    shown = ox("--namespace", "bridge", "schedules", "show", "email", "digest")
    assert "repeat:" not in shown.out
    bad = ox(
        "--namespace", "bridge", "schedules", "add", "email", "d", "--cron", "0 7 * * *", "--missed", "never"
    )
    assert "missed must be one of skip, once, all" in bad.err
    theirs = json.dumps({"jobId": "x1", "type": "email", "schedule": {"cron": "* * * * *"}})
    with clean.client() as client:
        client.set("bridge:jobs:data:x1", theirs)
        client.zadd("bridge:jobs:cron", {"x1": 4_000_000_000_000})
    assert (
        ox("--namespace", "bridge", "schedules", "show", "email", "x1", "--json").json["cron"] == "* * * * *"
    )
    assert ox("--namespace", "bridge", "schedules", "show", "video", "x1").code == 1, "it is of another type"
    assert ox("--namespace", "bridge", "schedules", "remove", "email", "x1", "digest").code == 0
    assert ox("--namespace", "bridge", "schedules", "list", "email", "--json").json == []
