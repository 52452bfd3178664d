"""The dashboard in a real Chromium: what a person does and sees, by mouse and by keyboard."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from oxcart import PermanentError, Queue, RunningJob, Worker
from oxcart.broker.access import AccessStore
from oxcart.broker.connection import Server as RedisServer
from oxcart.http import credentials
from oxcart.http.application import app
from oxcart.http.server import Server
from oxcart.http.web import dashboard
from oxcart.http.web.page import link
from oxcart.model.access import AccessKey, digest, key_text
from tests.browser import Browser, Page
from tests.conftest import MakeQueue
from tests.http.web.driving import at, live, shows
from tests.servers import ValkeyServer

pytestmark = [pytest.mark.node, pytest.mark.timeout(240)]

Drive = Callable[[Page], None]


def submit(url: str, **body: Any) -> str:
    """Adds a job over HTTP and returns its id."""
    answer = httpx.post(f"{url}/api/v1/jobs", json=body, timeout=60)
    assert answer.status_code == 201
    return str(answer.json()["id"])


class Till:
    """Handlers that do what a test tells them."""

    def __init__(self, queue: Queue) -> None:
        self.go = asyncio.Event()
        self.is_broken = True

        @queue.job(attempts=1)
        async def count(job: RunningJob, coins: int) -> dict[str, int]:
            await job.log(f"counting {coins} coins")
            await job.update_progress(40, "almost half")
            await self.go.wait()
            return {"cents": coins * 100}

        @queue.job(attempts=1, history=True)
        async def charge(card: str) -> str:
            if self.is_broken:
                try:
                    raise TimeoutError("no answer from the bank")
                except TimeoutError as error:
                    raise ConnectionError(f"card {card} cannot be charged") from error
            return "charged"

        @queue.job(attempts=3)
        async def decline(card: str) -> None:
            raise PermanentError("no such card")


@asynccontextmanager
async def till(queue: Queue) -> AsyncIterator[tuple[Till, str]]:
    """A queue with handlers and a dashboard, without a worker yet."""
    made = Till(queue)
    async with queue, Server(app([queue]), grace=1) as server:
        yield made, server.url


async def test_a_job_is_watched_while_it_runs(make_queue: MakeQueue, browser: Browser) -> None:
    queue = make_queue("till")
    async with till(queue) as (handlers, url):
        job_id = await asyncio.to_thread(submit, url, type="count", payload={"coins": 7})
        page = browser.page()

        def opened() -> None:
            page.goto(url + link("/job", queue="till", id=job_id))
            shows(page, "Scheduled", "h1")
            live(page)

        await asyncio.to_thread(opened)
        async with Worker(queue, name="clerk").running():

            def watched() -> None:
                shows(page, "Running", "h1")
                shows(page, "40 % · almost half")
                shows(page, "counting 7 coins", "#part-job_logs")
                shows(page, "clerk")

            await asyncio.to_thread(watched)
            handlers.go.set()

            def ended() -> None:
                shows(page, "Completed", "h1")
                shows(page, '"cents": 700')
                assert page.evaluate("document.querySelectorAll('.timeline .bar').length") >= 1
                assert page.evaluate("document.querySelector('time').title").endswith("UTC")
                assert page.errors == []

            await asyncio.to_thread(ended)


async def test_a_failure_is_read_and_retried(make_queue: MakeQueue, browser: Browser) -> None:
    queue = make_queue("till")
    async with till(queue) as (handlers, url), Worker(queue).running():
        job_id = await asyncio.to_thread(submit, url, type="charge", payload={"card": "7"}, max_attempts=1)
        page = browser.page()

        def read() -> None:
            page.goto(url + link("/job", queue="till", id=job_id))
            shows(page, "Dead letter", "h1")
            shows(page, "card 7 cannot be charged", ".cause")
            titles = page.evaluate("[...document.querySelectorAll('.trace summary')].map(e => e.innerText)")
            assert titles[0].startswith("TimeoutError: no answer from the bank")  # the cause comes first
            assert "raise ConnectionError" not in page.text("main")
            page.click(".trace details:last-of-type summary")
            shows(page, "raise ConnectionError")

        await asyncio.to_thread(read)
        handlers.is_broken = False

        def retried() -> None:
            page.click("button", "Retry")
            shows(page, "1 job will run again.")
            shows(page, "Completed", "h1")
            assert page.errors == []

        await asyncio.to_thread(retried)


async def test_a_job_is_cancelled_and_a_queue_paused_and_resumed(
    make_queue: MakeQueue, browser: Browser
) -> None:
    queue = make_queue("till")
    async with till(queue) as (_, url):
        job_id = await asyncio.to_thread(submit, url, type="count", payload={"coins": 1})

        def drive() -> None:
            page = browser.page()
            page.goto(url + link("/job", queue="till", id=job_id))
            page.click("button", "Cancel")
            page.click("#sure button", "Keep it")
            shows(page, "Scheduled", "h1")
            page.click("button", "Cancel")
            page.click("#sure-yes")
            shows(page, "Cancelled", "h1")
            page.goto(f"{url}/queue?name=till")
            page.click("button", "Pause")
            shows(page, "paused", "h1")
            page.click("button", "Resume")
            shows(page, "The queue runs again.")
            page.wait_for("!document.querySelector('h1').innerText.includes('paused')")
            assert page.errors == []

        await asyncio.to_thread(drive)
        assert not await queue.is_paused()
        assert (await queue.jobs.get(job_id)).state == "cancelled"  # type: ignore[union-attr]


async def test_many_jobs_are_retried_after_a_dry_run_and_dead_letters_replayed(
    make_queue: MakeQueue, browser: Browser
) -> None:
    queue = make_queue("till")
    async with till(queue) as (handlers, url), Worker(queue, concurrency=5).running():
        await queue.add_many([("charge", {"card": str(number)}) for number in range(6)])
        page = browser.page()

        def retried() -> None:
            page.goto(f"{url}/jobs?state=failed&queue=till")
            page.wait_for("document.querySelectorAll('[data-row]').length === 6")
            page.click("[data-row] input")
            shows(page, "1 selected", "#selected")
            page.click("[data-all]")
            shows(page, "6 selected", "#selected")
            page.click("#bulk button", "Retry…")
            shows(page, "Retry 6 jobs?", "h1")
            shows(page, "nothing has changed yet")

        await asyncio.to_thread(retried)
        assert (await queue.counts())["failed"] == 6

        def replayed() -> None:
            page.click("#confirm")
            shows(page, "6 jobs will run again.")
            page.wait_for("document.querySelectorAll('[data-row]').length === 6")  # they fail again
            page.goto(f"{url}/dead?queue=till")
            page.click("#replay")
            shows(page, "Replay 6 jobs?", "h1")

        await asyncio.to_thread(replayed)
        handlers.is_broken = False

        def done() -> None:
            page.click("#confirm")
            shows(page, "6 dead letters replayed.")
            shows(page, "No dead letters in till")
            assert page.errors == []

        await asyncio.to_thread(done)
        assert (await queue.counts())["completed"] == 6


async def test_everything_is_done_by_keyboard(make_queue: MakeQueue, browser: Browser) -> None:
    queue = make_queue("till")
    async with till(queue) as (handlers, url), Worker(queue).running():
        jobs = await queue.add_many([("charge", {"card": str(number)}) for number in range(3)])
        await asyncio.gather(*(job.result(60) for job in jobs), return_exceptions=True)
        handlers.is_broken = False

        def drive() -> None:
            page = browser.page()
            page.goto(url)
            live(page)
            page.press("?")
            shows(page, "Keyboard", "#help")
            page.press("Escape")
            page.press("j", "Enter")
            at(page, "/queue?name=till")
            page.press("g", "j")
            at(page, "/jobs")
            page.press("/")
            page.write(jobs[0].id)
            page.press("Enter")
            at(page, "/job?queue=till")
            page.press("r")
            shows(page, "1 job will run again.")
            shows(page, "Completed", "h1")
            live(page)  # the script of the new page listens to keys
            page.press("g", "d")
            at(page, "/dead")
            page.press("j", "x", "j", "x")
            shows(page, "2 selected", "#selected")
            page.press("k", "x", "x", "r")
            shows(page, "Retry 2 jobs?", "h1")
            page.wait_for("document.activeElement?.id === 'confirm'")
            page.press("Enter")
            shows(page, "2 jobs will run again.")
            live(page)
            before = page.evaluate("document.documentElement.dataset.theme || ''")
            page.press("t")
            page.wait_for(f"document.documentElement.dataset.theme !== {json.dumps(before)}")
            theme = page.evaluate("document.documentElement.dataset.theme")
            page.press("g", "o")
            shows(page, "Overview", "h1")
            assert page.evaluate("document.documentElement.dataset.theme") == theme
            assert page.errors == []

        await asyncio.to_thread(drive)


async def test_what_a_job_carries_never_runs_in_a_live_page(make_queue: MakeQueue, browser: Browser) -> None:
    queue = make_queue("till")
    evil = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
    async with till(queue) as (_, url):
        page = browser.page()

        def opened() -> None:
            page.goto(f"{url}/jobs?state=ready&queue=till")
            live(page)

        await asyncio.to_thread(opened)
        await queue.add(evil, {evil: evil}, tags={"a": evil}, correlation_id=evil)

        def seen() -> None:
            page.wait_for("document.querySelectorAll('[data-row]').length === 1")  # by a live part
            shows(page, "<img src=x")
            page.click("[data-open]")
            at(page, "/job")
            shows(page, "<script>", "#payload")
            assert page.evaluate("window.hacked === undefined && !document.querySelector('main img')")
            assert page.errors == []

        await asyncio.to_thread(seen)


async def test_signing_in_acting_and_signing_out(make_queue: MakeQueue, browser: Browser) -> None:
    queue = make_queue("till")
    async with queue, Server(app([queue], tokens={"the-key-of-an-operator": "operator"}), grace=1) as server:

        def drive() -> None:
            page = browser.page()
            page.goto(f"{server.url}/queue?name=till")
            page.type("#key", "the-key-of-an-operator")
            page.press("Enter")  # the only field of its form
            at(page, "/queue?name=till")
            page.click("button", "Pause")
            shows(page, "paused", "h1")
            page.click("button", "Sign out")
            page.wait_for("location.pathname === '/sign-in'")
            page.goto(f"{server.url}/")
            page.wait_for("location.pathname === '/sign-in'")
            assert page.errors == []

        await asyncio.to_thread(drive)
        assert await queue.is_paused()


async def test_a_page_says_that_a_server_is_away_and_recovers(browser: Browser) -> None:
    with ValkeyServer() as valkey:
        queue = Queue("till", url=valkey.url)
        async with till(queue) as (_, url):
            page = browser.page()
            await queue.add("count", {"coins": 1})

            def opened() -> None:
                page.goto(f"{url}/jobs?state=ready&queue=till")
                live(page)

            await asyncio.to_thread(opened)
            valkey.kill()
            await asyncio.to_thread(shows, page, "The queue server does not answer", "#away")
            valkey.start()
            await asyncio.to_thread(page.wait_for, "document.querySelector('#away').hidden")
            await queue.add("count", {"coins": 2})
            await asyncio.to_thread(page.wait_for, "document.querySelectorAll('[data-row]').length >= 1")


async def test_a_page_recovers_from_a_restart_of_the_dashboard(
    make_queue: MakeQueue, browser: Browser
) -> None:
    queue = make_queue("till")
    page = browser.page()
    async with Server(app([queue]), grace=1) as server:
        port, url = server.port, server.url

        def opened() -> None:
            page.goto(f"{url}/jobs?state=ready")
            live(page)

        await asyncio.to_thread(opened)
    await asyncio.to_thread(shows, page, "The dashboard does not answer", "#away")
    await queue.add("count", {"coins": 1})
    async with Server(app([queue]), port=port, grace=1):
        await asyncio.to_thread(page.wait_for, "document.querySelector('#away').hidden")
        await asyncio.to_thread(page.wait_for, "document.querySelectorAll('[data-row]').length === 1")


async def test_a_page_recovers_from_a_lost_connection(make_queue: MakeQueue, browser: Browser) -> None:
    queue = make_queue("till")
    page = browser.page()
    async with Server(app([queue]), grace=1) as server:

        def opened() -> None:
            page.goto(f"{server.url}/jobs?state=ready")
            live(page)
            page.evaluate("""(() => {
                const away = document.querySelector("#away");
                window.said = [];
                const listener = new MutationObserver(() => window.said.push(away.innerText));
                listener.observe(away, {attributes: true});
            })()""")

        await asyncio.to_thread(opened)
        for connection in list(server._server.server_state.connections):
            connection.transport.abort()
        await asyncio.to_thread(page.wait_for, "window.said.join().includes('does not answer')")
        await queue.add("count", {"coins": 1})
        await asyncio.to_thread(page.wait_for, "document.querySelector('#away').hidden")
        await asyncio.to_thread(page.wait_for, "document.querySelectorAll('[data-row]').length === 1")


async def test_a_page_whose_key_was_revoked_leads_to_the_form(
    make_queue: MakeQueue, browser: Browser, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "FRESH", 0.1)
    queue = make_queue("till")
    keys = AccessStore(RedisServer(url), "bull")
    key_id, text = key_text(secrets.token_bytes(6), secrets.token_bytes(32))
    key = AccessKey(id=key_id, name="Ada", hash=digest(text).hex(), grants=("observer",), created_ms=1)
    await keys.put(key)
    page = browser.page()
    async with queue, Server(app([queue]), grace=1) as server:

        def opened() -> None:
            page.goto(f"{server.url}/queue?name=till")
            page.type("#key", text)
            page.press("Enter")
            at(page, "/queue?name=till")

        await asyncio.to_thread(opened)
        await keys.put(msgspec.structs.replace(key, revoked_ms=1))
        await asyncio.to_thread(page.wait_for, "location.pathname === '/sign-in'")
        assert await asyncio.to_thread(page.evaluate, "document.querySelector('[name=next]').value") == (
            "/queue?name=till"
        )
    await keys.close()


async def test_a_page_opened_during_an_outage_reloads_by_itself(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "PATIENCE", 1.0)
    with ValkeyServer() as valkey:
        queue = Queue("till", url=valkey.url)
        async with till(queue) as (_, url):
            page = browser.page()
            valkey.kill()
            await asyncio.to_thread(page.goto, f"{url}/queue?name=till")
            await asyncio.to_thread(shows, page, "503")
            valkey.start()
            await asyncio.to_thread(live, page)
