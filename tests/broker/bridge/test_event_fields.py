"""Fields of events: few by default, and the whole record of a run while a pipeline reads the type."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from oxcart.broker.bridge.schedules import CronKeeper
from oxcart.broker.bridge.scripts import load
from oxcart.broker.factory import DEFAULTS
from oxcart.model.schedule import Schedule
from tests.broker.bridge.conftest import Desk

STREAM = "bridge:ox:events:email"
READING = "bridge:ox:reading:email"
PLAIN = {"event", "jobId", "name", "prev", "returnvalue", "failedReason", "delay", "state"}


async def read_from_now_on(desk: Desk, keep: int = 50_000) -> None:
    """Lets a pipeline read the type."""
    broker = desk.broker()
    asked = ("email", "main", desk.clock() + 60_000, keep, desk.clock(), "mark")
    await broker.caller.again(load("attach"), broker.keys.waiting(), *asked)


def events(desk: Desk, job_id: str) -> list[dict[str, str]]:
    entries = [fields for _, fields in desk.store.xrange(STREAM)]
    return [
        {name: value for name, value in fields.items() if name != "jobId"}
        for fields in entries
        if fields["jobId"] == job_id
    ]


def last(desk: Desk, job_id: str) -> dict[str, Any]:
    return events(desk, job_id)[-1]


async def test_unread_events_carry_only_required_fields(desk: Desk) -> None:
    job = await desk.active(tags={"tenant": "acme"}, correlation_id="c")
    await desk.end(job, "d", value=b"no", category="temporary", delay_ms=10, stack=b'["at x"]')
    desk.clock.now += 10
    (job,) = await desk.claim()
    await desk.end(job, "f", value=b"no", category="permanent", attempts=3)
    entries = [fields for _, fields in desk.store.xrange(STREAM)]
    assert [fields["event"] for fields in entries] == [
        *("added", "waiting", "active", "delayed", "waiting", "active", "failed")
    ]
    assert set().union(*entries) <= PLAIN
    assert entries[-1]["state"] == "failed"


@pytest.mark.parametrize(
    ("kind", "fields", "wanted"),
    [
        ("c", {}, {"event": "completed", "outcome": "completed"}),
        ("r", {"value": b"no"}, {"event": "waiting", "outcome": "retried", "failedReason": "no"}),
        (
            "d",
            {"value": b"no", "delay_ms": 9},
            {"event": "delayed", "outcome": "retried", "state": "retrying"},
        ),
        (
            "d",
            {"counts": False, "delay_ms": 9},
            {"event": "delayed", "outcome": "snoozed", "state": "delayed"},
        ),
        ("w", {}, {"event": "waiting", "outcome": "given_back"}),
        (
            "f",
            {"category": "temporary", "code": "E7", "attempts": 1, "stack": b'["at x","at y"]'},
            {"event": "failed", "outcome": "failed", "state": "dead_letter", "code": "E7", "stack": "at y"},
        ),
        ("f", {"category": "cancelled"}, {"event": "failed", "outcome": "failed", "state": "cancelled"}),
    ],
)
async def test_read_events_carry_the_end_of_a_run(
    desk: Desk, kind: str, fields: dict[str, Any], wanted: dict[str, str]
) -> None:
    await read_from_now_on(desk)
    job = await desk.active()
    began = desk.clock()
    desk.clock.now += 5
    assert await desk.end(job, kind, **fields) == 1
    run = {"worker": "w1", "began": str(began), "ended": str(began + 5)}
    assert last(desk, job.id).items() >= {**wanted, **run}.items()


async def test_a_snooze_after_a_failed_attempt_is_a_retry(desk: Desk) -> None:
    await read_from_now_on(desk)
    job = await desk.active()
    await desk.end(job, "r", value=b"no")
    (again,) = await desk.claim()
    await desk.end(again, "d", counts=False, delay_ms=5)
    assert last(desk, job.id)["state"] == "retrying"


async def test_added_event_carries_name_tags_and_correlation_id(desk: Desk) -> None:
    await read_from_now_on(desk)
    broker = desk.broker()
    options = DEFAULTS["bridge"].replace(tags={"tenant": "acme"}, correlation_id="c")
    (added,) = await broker.add([broker.encode("welcome", None, options)])
    assert events(desk, added.id)[0] == {
        "event": "added",
        "outcome": "added",
        "name": "welcome",
        "corr": "c",
        "tags": '{"tenant":"acme"}',
    }


async def test_a_firing_has_its_rule_and_the_time_for_which_it_was_made(desk: Desk) -> None:
    broker, keeper = desk.broker(), CronKeeper(desk.broker(), "s1")
    made = Schedule.build(cron="0 * * * *", tz="Europe/Berlin")
    schedule = await broker.schedules.upsert("digest", made, "email", b"1", DEFAULTS["bridge"])
    assert schedule is not None

    async def fire() -> tuple[int, dict[str, str]]:
        due = int(desk.store.zscore("bridge:jobs:cron", schedule))
        desk.clock.now = due + 7
        assert await keeper.tick() == 1
        job_id = desk.store.hget(f"bridge:ox:schedule:{schedule}", "last")
        entries = events(desk, job_id)
        assert [fields["event"] for fields in entries] == ["added", "waiting"]
        return due, entries[0]

    _, unread = await fire()
    assert unread == {"event": "added", "name": "email"}
    await read_from_now_on(desk)
    due, read = await fire()
    rule = {"schedule": "digest", "cron": "0 * * * *", "tz": "Europe/Berlin", "due": due, "count": 2}
    assert json.loads(read.pop("rule")) == rule
    assert read == {"event": "added", "outcome": "added", "name": "email"}


async def test_a_job_of_another_client_is_added_when_it_is_found(desk: Desk) -> None:
    await read_from_now_on(desk)
    first = desk.foreign("first", metadata={"tenant": "else"})
    again = desk.foreign("again", attempts=1)
    pending = desk.foreign("pending", dependsOn=["nowhere"])
    await desk.claim(2)
    made = {"event": "added", "outcome": "added", "name": "email", "created": str(desk.clock())}
    assert events(desk, first)[0].items() >= made.items()
    assert [fields["event"] for fields in events(desk, again)] == ["waiting", "active"], "it is not new"
    assert [fields["event"] for fields in events(desk, pending)] == ["added", "waiting-children"]


async def test_events_report_dependents_and_lost_workers(desk: Desk) -> None:
    await read_from_now_on(desk)
    job = await desk.active(attempts=1)
    waits = await desk.add(after=[job.id])
    assert [fields["event"] for fields in events(desk, waits)] == ["added", "waiting-children"]
    desk.store.delete(f"bridge:jobs:lock:{job.id}")
    assert (await desk.broker().recover()).ids == [job.id]
    event = last(desk, job.id)
    assert (event["event"], event["outcome"], event["category"]) == ("failed", "stalled", "system")
    assert (event["state"], event["worker"]) == ("dead_letter", "w1")


async def test_a_replayed_dead_letter_comes_from_the_failed(desk: Desk) -> None:
    job = await desk.active()
    await desk.end(job, "f", category="permanent")
    await desk.broker().retry_job(job.id, "failed")
    assert last(desk, job.id) == {"event": "waiting", "prev": "failed"}


async def test_a_replay_names_the_job_and_its_creation_while_a_pipeline_reads(desk: Desk) -> None:
    await read_from_now_on(desk)
    job = await desk.active(tags={"tenant": "acme"}, correlation_id="o-7")
    await desk.end(job, "f", category="permanent")
    await desk.broker().retry_job(job.id, "failed")
    created = json.loads(cast(str, desk.store.get(f"bridge:jobs:data:{job.id}")))["createdAt"]
    assert last(desk, job.id) == {
        "event": "waiting",
        "prev": "failed",
        "outcome": "replayed",
        "name": "email",
        "corr": "o-7",
        "tags": '{"tenant":"acme"}',
        "created": str(created),
    }, "its earlier generation may have been built long ago"


async def test_more_events_are_kept_while_a_pipeline_reads(desk: Desk) -> None:
    pipe = desk.store.pipeline()
    for _ in range(11_000):
        pipe.xadd(STREAM, {"event": "x"})
    pipe.execute()
    await read_from_now_on(desk)
    await desk.add()
    assert desk.store.xlen(STREAM) > 11_000
    desk.store.delete(READING)
    await desk.add()
    assert desk.store.xlen(STREAM) < 11_000
