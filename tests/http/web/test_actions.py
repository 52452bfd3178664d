"""Actions of the pages: forms, dry runs, and where they lead back."""

from __future__ import annotations

import re
from typing import Any

import pytest

from oxcart import Queue
from tests.http.conftest import Serve
from tests.http.web.reading import fail_one


async def test_a_group_of_failures_is_retried_after_a_dry_run(queue: Queue, serve: Serve) -> None:
    for number in range(3):
        await fail_one(queue, reason=f"order {number} is unknown")
    other = await fail_one(queue, reason="the disk is full")
    client = await serve(queue)
    page = (await client.get("/failures")).text
    found = re.search(r'formaction="(/failures/retry[^"]*unknown[^"]*)"', page)
    assert found is not None
    path = found[1].replace("&amp;", "&")
    assert "Retry 3 jobs?" in (await client.post(path, data={"back": "/failures"})).text
    assert (await queue.counts())["failed"] == 4
    answer = await client.post(path, data={"back": "/failures", "confirm": "yes"})
    assert answer.headers["location"] == "/failures?did=retried&n=3"
    assert [job.id for job in await queue.jobs.list("failed")] == [other]


async def test_dead_letters_are_replayed_and_removed_after_a_dry_run(queue: Queue, serve: Serve) -> None:
    await fail_one(queue, name="charge")
    await fail_one(queue, name="refund")
    client = await serve(queue)
    assert "charge" in (await client.get("/dead?queue=q&type=charge")).text
    form = {"back": "/dead"}
    assert "Replay 1 job?" in (await client.post("/dead/replay?queue=q&type=charge", data=form)).text
    answer = await client.post("/dead/replay?queue=q&type=charge", data={**form, "confirm": "yes"})
    assert answer.headers["location"] == "/dead?did=replayed&n=1"
    await fail_one(queue, name="charge", reason="no answer from the bank")
    assert "charge" in (await client.get("/dead?queue=q&reason=BANK")).text
    assert "No dead letters" in (await client.get("/dead?queue=q&reason=full")).text
    page = (await client.post("/dead/replay?queue=q&reason=bank", data=form)).text
    assert "Replay 2 jobs?" in page  # the replayed one has failed for the same reason
    assert '<input type="hidden" name="reason" value="bank">' in page
    answer = await client.post("/dead/purge?queue=q&reason=bank", data={**form, "confirm": "yes"})
    assert answer.headers["location"] == "/dead?did=purged&n=2"
    answer = await client.post("/dead/purge?queue=q", data={**form, "confirm": "yes"})
    assert answer.headers["location"] == "/dead?did=purged&n=1"
    assert (await queue.counts())["failed"] == 0


async def test_groups_are_shown_paused_and_resumed(queue: Queue, serve: Serve) -> None:
    await queue.add_many([("send", {}, {"group": "big"})] * 60 + [("send", {}, {"group": "<b>&"})] * 30)
    await queue.groups.set_all(concurrent=5)
    await queue.groups.set("big", per_minute=40, weight=2.5)
    client = await serve(queue)
    waiting = (await queue.groups.summary()).waiting
    page = (await client.get("/queue?name=q")).text
    assert f"In groups<strong>{waiting}</strong>" in page
    assert f"{waiting} jobs of 2 groups wait for their turn" in page
    assert re.search(r"big</span></th>.*>5</td>.*>40</td>.*>2.5</td>", page)
    assert "<b>" not in page
    # They are ready and not delayed, whatever the wire has.
    overview = (await client.get("/")).text
    assert re.search(r'data-label="Scheduled" class="n"><a href="/queue\?name=q">90</a>', overview)
    assert re.search(r"Delayed<strong>0</strong>", page)
    form = {"back": "/queue?name=q"}
    answer = await client.post("/groups/pause?name=q&group=big", data=form)
    assert answer.headers["location"] == "/queue?name=q&did=group-paused&n=1"
    assert (await queue.groups.settings("big")).paused
    assert "/groups/resume?name=q&amp;group=big" in (await client.get("/queue?name=q")).text
    await client.post("/groups/resume?name=q&group=big", data=form)
    assert not (await queue.groups.settings("big")).paused
    limits = (await client.get("/limits")).text
    assert re.search(r"each <a .*group</a></td><td[^>]*>5</td>", limits)


async def test_limits_are_shown_and_set(queue: Queue, serve: Serve) -> None:
    await queue.limits.set_type_limit("refund", concurrent=2)
    client = await serve(queue)
    form = {"queue": "q", "concurrency": "5", "most": "30", "per": "1m", "back": "/limits"}
    assert (await client.post("/limits/set", data=form)).status_code == 303
    page = (await client.get("/limits")).text
    assert "30 per 1 m" in page
    assert "refund" in page
    assert (await client.post("/limits/set", data={**form, "concurrency": "0"})).status_code == 400
    assert await queue.limits.concurrency() == 5


async def test_limits_of_types_keys_and_groups_are_set_and_removed(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    form = {"queue": "q", "back": "/limits"}

    async def put(status: int = 303, **fields: str) -> str:
        answer = await client.post("/limits/set-part", data={**form, **fields})
        assert answer.status_code == status, fields
        return answer.text

    await put(of="type", name="refund", concurrent="2", per_minute="30")
    limit = (await queue.limits.type_limits())["refund"]
    assert (limit.concurrent, limit.per_minute) == (2, 30)
    await put(of="type", name="refund")
    assert await queue.limits.type_limits() == {}
    await put(of="key", per_minute="9")
    key = await queue.limits.key_limit()
    assert key is not None
    assert (key.concurrent, key.per_minute) == (None, 9)
    await put(of="key")
    assert await queue.limits.key_limit() is None
    await put(of="groups", concurrent="5")
    await put(of="group", name="acme", concurrent="0", weight="2.5")
    assert (await queue.groups.settings()).concurrent == 5
    acme = await queue.groups.settings("acme")
    assert (acme.concurrent, acme.per_minute, acme.weight) == (0, None, 2.5)
    await put(of="group", name="acme")
    assert (await queue.groups.settings("acme")).concurrent is None
    # Wrong fields are named, and change nothing.
    for fields, word in (
        ({"of": "type"}, "name must be"),
        ({"of": "lane", "name": "x"}, "of must be"),
        ({"of": "groups", "weight": "2"}, "weight must be"),
        ({"of": "group", "name": "acme", "weight": "heavy"}, "weight must be"),
        ({"of": "key", "concurrent": "0"}, "concurrent must be"),
    ):
        assert word in await put(400, **fields)
    assert (await queue.groups.settings()).concurrent == 5
    # The page of the queue leads to the form, which knows the group.
    await queue.add_many([("send", {}, {"group": "<b>&"})] * 30)
    page = (await client.get("/queue?name=q")).text
    found = re.search(r'href="(/limits\?queue=q&amp;of=group&amp;name=[^"#]*)#change-part"', page)
    assert found is not None
    limits = (await client.get(found[1].replace("&amp;", "&"))).text
    assert 'value="&lt;b&gt;&amp;"' in limits
    assert re.search(r'<option value="group" selected>', limits)


@pytest.mark.parametrize(
    "back", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:1", "/a\r\nb: c"]
)
async def test_an_action_leads_back_to_this_site_alone(queue: Queue, serve: Serve, back: str) -> None:
    answer = await (await serve(queue)).post("/queue/pause?name=q", data={"back": back})
    assert answer.headers["location"] == "/?did=paused&n=1"


async def test_what_was_done_is_shown_and_nothing_else_of_the_address(queue: Queue, serve: Serve) -> None:
    client = await serve(queue)
    assert "3 jobs will run again." in (await client.get("/?did=retried&n=3")).text
    page = (await client.get("/?did=<b>hacked&n=<b>")).text
    assert "hacked" not in page


async def test_a_dry_run_changes_nothing_and_the_confirmed_form_does(queue: Queue, serve: Serve) -> None:
    first, second = await fail_one(queue), await fail_one(queue)
    client = await serve(queue)
    form: dict[str, Any] = {"verb": "retry", "job": [f"q/{first}", f"q/{second}", "q/none"], "back": "/jobs"}
    page = await client.post("/jobs/bulk", data=form)
    assert "Retry 2 jobs?" in page.text
    assert (await queue.counts())["failed"] == 2
    answer = await client.post("/jobs/bulk", data={**form, "confirm": "yes"})
    assert answer.headers["location"] == "/jobs?did=retried&n=2"
    assert (await queue.counts())["failed"] == 0


async def test_an_action_on_all_that_match_spans_pages(queue: Queue, serve: Serve) -> None:
    await queue.add_many([("welcome", {})] * 60 + [("digest", {})] * 5)
    client = await serve(queue)
    form = {
        "verb": "cancel",
        "every": "yes",
        "state": "ready",
        "queue": "q",
        "type": "welcome",
        "back": "/jobs",
    }
    assert "Cancel 60 jobs?" in (await client.post("/jobs/bulk", data=form)).text
    answer = await client.post("/jobs/bulk", data={**form, "confirm": "yes"})
    assert answer.headers["location"] == "/jobs?did=cancelled&n=60"
    assert [job.name for job in await queue.jobs.list("waiting")] == ["digest"] * 5


async def test_jobs_that_cannot_be_changed_are_named_with_the_reason(queue: Queue, serve: Serve) -> None:
    job = await queue.add("welcome")
    page = await (await serve(queue)).post(
        "/jobs/bulk", data={"verb": "retry", "job": [f"q/{job.id}"], "confirm": "yes"}
    )
    assert "0 retried, 1 left as they are" in page.text
    assert job.id in page.text


async def test_actions_are_in_the_audit_log(queue: Queue, serve: Serve) -> None:
    client = await serve(queue, tokens={"the-key-of-an-admin": "admin"}, token="the-key-of-an-admin")
    job = await queue.add("welcome")
    await client.post(f"/job/cancel?queue=q&id={job.id}")
    entries = (await client.get("/api/v1/audit")).json()["entries"]
    assert [(row["action"], row["queue"], row["job_id"]) for row in entries] == [
        ("POST /job/cancel", "q", job.id)
    ]
