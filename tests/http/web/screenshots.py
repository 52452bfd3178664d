"""Takes a picture of every page of the dashboard in both themes and at phone width, from made-up data.

python -m tests.http.web.screenshots FOLDER [PAGE …]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlencode

import httpx

from oxcart.http.application import app
from oxcart.http.server import Server
from tests.browser import Browser, Page
from tests.http.web.made_up import Shop, make_history, open_shop
from tests.servers import ValkeyServer

#: The sizes of a picture: its name, width, height, and whether it is a phone's.
SIZES = (("wide", 1280, 860, False), ("phone", 390, 844, True))
THEMES = ("light", "dark")
#: Seconds that the shop runs before the first picture.
SECONDS = 80


#: The address of every page; ``{name}`` stands for the job that the shop shows under that name.
PAGES = {
    "overview": "/",
    "queue": "/queue?name=payments",
    "queue-groups": "/queue?name=imports",
    "queue-partitions": "/queue?name=clicks",
    "jobs": "/jobs?state=failed&queue=payments",
    "jobs-all": "/jobs",
    "job": "/job?{dead}",
    "job-running": "/job?{running}",
    "flow": "/flow?{flow}",
    "failures": "/failures",
    "dead": "/dead?queue=payments",
    "schedules": "/schedules",
    "workers": "/workers",
    "limits": "/limits",
    "history": "/history",
    "history-service": "/history?view=service",
    "audit": "/audit",
    "sign-in": "/sign-in",
}


def pages_of(shop: Shop) -> dict[str, str]:
    """Returns the address of every page."""
    jobs = {name: urlencode({"queue": queue, "id": job_id}) for name, (queue, job_id) in shop.shown.items()}
    return {name: path.format(**jobs) for name, path in PAGES.items()}


def set_look(page: Page, theme: str, wide: int, high: int, phone: bool) -> None:
    """Sets the theme of the system and the size of the window."""
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    page.call(
        "Emulation.setDeviceMetricsOverride", width=wide, height=high, deviceScaleFactor=1, mobile=phone
    )


def take(url: str, shop: Shop, folder: Path, only: list[str]) -> None:
    """Takes the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with Browser() as browser:
        page = browser.page()
        for name, path in pages_of(shop).items():
            if only and name not in only:
                continue
            for theme in THEMES:
                for size, wide, high, phone in SIZES:
                    set_look(page, theme, wide, high, phone)
                    page.goto(url + path)
                    page.wait_for(
                        "!document.body.dataset.events || document.querySelector('#link-state.live') !== null"
                    )
                    page.screenshot(folder / f"{name}-{theme}-{size}.png")
            print(name, flush=True)
        print(page.errors or "no errors on any page")


async def main(folder: Path, only: list[str]) -> None:
    """Opens the shop, lets it run for a while, and takes the pictures."""
    with ValkeyServer() as valkey, tempfile.TemporaryDirectory() as made:
        lake = make_history(Path(made))
        async with open_shop(valkey.url) as shop, Server(app(shop.queues, lake=lake)) as server:
            await asyncio.wait_for(shop.find_failures(), 60)
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
                for path in (
                    "queues/search-index/pause",
                    "queues/search-index/resume",
                    "queues/payments/retry",
                ):
                    body = {"dry_run": True} if path.endswith("retry") else None
                    await client.post(f"/api/v1/{path}", json=body)  # so that the audit log has rows
                for _ in range(SECONDS // 2):  # somebody watches, so that the charts have a past
                    await client.get("/")
                    await asyncio.sleep(2)
            await asyncio.to_thread(take, server.url, shop, folder, only)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
