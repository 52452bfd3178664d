"""``oxcart serve`` is killed and started again: clients and browsers continue, no job is lost or doubled."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable

import pytest

from oxcart import Queue
from oxcart.sync import Queue as SyncQueue
from tests.browser import Browser
from tests.cli.conftest import Program
from tests.http.web.driving import live, shows
from tests.servers import ValkeyServer, free_port

Start = Callable[..., Program]


def serve(start: Start, port: int) -> Program:
    program = start("serve", "--port", str(port), "--queues", "emails")
    program.wait_for("HTTP API on http")
    return program


@pytest.mark.parametrize("size", [1, 40])
def test_a_remote_queue_loses_and_doubles_no_job(start: Start, clean: ValkeyServer, size: int) -> None:
    port, jobs, wanted = free_port(), list[str](), 400
    under_way, may_end = threading.Event(), threading.Event()
    errors: list[BaseException] = []
    program = serve(start, port)

    def add() -> None:
        try:
            with SyncQueue("emails", url=f"http://127.0.0.1:{port}", add_timeout=60) as remote:
                for number in range(0, wanted, size):
                    if number >= wanted - size:
                        assert may_end.wait(80)  # the last ones come after the restart
                    if number >= 50:
                        under_way.set()
                    rows = [("welcome", {"number": one}) for one in range(number, number + size)]
                    made = remote.add_many(rows) if size > 1 else [remote.add(*rows[0])]
                    jobs.extend(job.id for job in made)
        except BaseException as error:
            errors.append(error)
            under_way.set()

    adding = threading.Thread(target=add, daemon=True)
    adding.start()
    assert under_way.wait(80)
    program.send(signal.SIGKILL)
    assert program.wait() == -signal.SIGKILL
    serve(start, port)
    may_end.set()
    adding.join(80)
    assert errors == []

    async def stored() -> list[str]:
        async with Queue("emails", url=clean.url) as queue:
            return [job.id for job in await queue.jobs.list("prioritized", limit=3 * wanted)]

    found = asyncio.run(stored())
    assert len(found) == len(set(jobs)) == wanted
    assert set(found) == set(jobs)


@pytest.mark.node
@pytest.mark.timeout(240)
def test_a_page_says_so_and_recovers(start: Start, clean: ValkeyServer) -> None:
    port = free_port()
    program = serve(start, port)

    async def add() -> None:
        async with Queue("emails", url=clean.url) as queue:
            await queue.add("welcome")

    with Browser() as browser:
        page = browser.page()
        page.goto(f"http://127.0.0.1:{port}/jobs?state=ready&queue=emails")
        live(page)
        program.send(signal.SIGKILL)
        assert program.wait() == -signal.SIGKILL
        shows(page, "The dashboard does not answer", "#away")
        asyncio.run(add())
        serve(start, port)
        page.wait_for("document.querySelector('#away').hidden")
        page.wait_for("document.querySelectorAll('[data-row]').length === 1")
