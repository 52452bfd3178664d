"""What a caller may see of the pages: its own queues, and no masked field."""

from __future__ import annotations

import re

from oxcart import Flow, Queue, RunningJob, Worker
from tests.conftest import MakeQueue
from tests.http.conftest import Serve

TOKENS = {
    "the-key-of-an-observer": "observer",
    "the-key-of-an-operator": "operator",
    "the-key-for-emails-only": "operator@emails",
}


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


async def test_a_caller_sees_only_its_queues(make_queue: MakeQueue, serve: Serve) -> None:
    emails, video = make_queue("emails"), make_queue("video")
    job = await video.add("render", {"clip": 1})
    client = await serve(emails, video, tokens=TOKENS)
    headers = bearer("the-key-for-emails-only")
    assert "video" not in (await client.get("/", headers=headers)).text
    for path in ("/queue?name=video", f"/job?queue=video&id={job.id}", "/jobs?queue=video"):
        assert (await client.get(path, headers=headers)).status_code == 404


async def test_a_flow_hides_jobs_of_queues_that_the_caller_may_not_see(
    make_queue: MakeQueue, serve: Serve
) -> None:
    emails, video = make_queue("emails"), make_queue("video")
    flow = await Flow(emails, "send", {}).after(Flow(video, "secret-render", {})).add()
    client = await serve(emails, video, tokens=TOKENS)
    for path in (f"/flow?queue=emails&id={flow.id}", f"/job?queue=emails&id={flow.id}"):
        page = await client.get(path, headers=bearer("the-key-for-emails-only"))
        assert page.status_code == 200
        assert "secret-render" not in page.text
        page = await client.get(path, headers=bearer("the-key-of-an-operator"))
        assert "secret-render" in page.text


async def test_an_observer_sees_no_payload_and_no_buttons(queue: Queue, serve: Serve) -> None:
    job = await queue.add("welcome", {"secret": "hunter2"})
    client = await serve(queue, tokens=TOKENS, mask=["pass*"])
    path = f"/job?queue=q&id={job.id}"
    page = (await client.get(path, headers=bearer("the-key-of-an-observer"))).text
    assert "hunter2" not in page
    assert 'form="act"' not in page
    page = (await client.get(path, headers=bearer("the-key-of-an-operator"))).text
    assert "hunter2" in page
    assert "/job/cancel" in page


async def test_masked_fields_are_shown_nowhere_on_a_job(queue: Queue, serve: Serve) -> None:
    job = await queue.add("welcome", {"password": "hunter2"})
    page = (await (await serve(queue, mask=["pass*"])).get(f"/job?queue=q&id={job.id}")).text
    assert "hunter2" not in page
    assert "[masked]" in page


async def test_masked_fields_of_steps_and_progress_are_hidden(queue: Queue, serve: Serve) -> None:
    @queue.job
    async def login(job: RunningJob) -> None:
        await job.update_progress({"password": "hunter2", "page": "page-4"})
        await job.step("account", lambda: {"password": "hunter2", "user": "user-of-the-step"})
        await job.step("password", lambda: "hunter2")

    job = await queue.add("login")
    async with Worker(queue).running():
        await job.result(30)
    client = await serve(queue, tokens=TOKENS, mask=["pass*"])
    path = f"/job?queue=q&id={job.id}"
    page = (await client.get(path, headers=bearer("the-key-of-an-operator"))).text
    assert "hunter2" not in page
    assert "user-of-the-step" in page
    assert "page-4" in page
    page = (await client.get(path, headers=bearer("the-key-of-an-observer"))).text
    assert "hunter2" not in page
    assert "user-of-the-step" not in page
    assert "page-4" not in page


async def test_without_a_key_a_browser_is_led_to_the_form(queue: Queue, serve: Serve) -> None:
    client = await serve(queue, tokens=TOKENS)
    answer = await client.get("/jobs?state=failed", headers={"Accept": "text/html"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/sign-in?next=%2Fjobs%3Fstate%3Dfailed"
    assert (await client.get("/jobs")).status_code == 401


async def test_a_form_of_a_session_needs_its_token(queue: Queue, serve: Serve) -> None:
    client = await serve(queue, tokens=TOKENS)
    await client.post("/sign-in", data={"key": "the-key-of-an-operator"})
    page = (await client.get("/queue?name=q")).text
    token = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert token is not None
    assert (await client.post("/queue/pause?name=q", data={"back": "/"})).status_code == 403
    assert not await queue.is_paused()
    form = {"csrf_token": token[1], "back": "/queue?name=q"}
    answer = await client.post("/queue/pause?name=q", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/queue?name=q&did=paused&n=1")
    assert await queue.is_paused()
