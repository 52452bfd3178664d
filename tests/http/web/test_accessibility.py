"""Every page and every state of a page, looked at by axe-core in both themes and at phone width."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from oxcart.http.application import app
from oxcart.http.server import Server
from tests import nodes
from tests.browser import Browser, Page
from tests.http.web.driving import live, shows
from tests.http.web.made_up import make_history, open_shop
from tests.http.web.screenshots import SIZES, THEMES, pages_of, set_look

pytestmark = [pytest.mark.node, pytest.mark.timeout(480)]

#: Whether the link to the current page is outside of the window.
CURRENT_IS_HIDDEN = """(() => {
  const link = document.querySelector('.side [aria-current]');
  const place = link && link.getBoundingClientRect();
  return Boolean(place && place.width && (place.left < 0 || place.right > innerWidth));
})()"""

#: The names of tables that are wider than their place.
CUT_OFF = """[...document.querySelectorAll('.scroll')]
  .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.ariaLabel)"""


class Inspector:
    """Looks for violations of WCAG 2.2, levels A and AA, with axe-core."""

    RULES: ClassVar[dict[str, Any]] = {
        "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
    }

    def __init__(self, page: Page) -> None:
        self.page = page
        self.broken: list[str] = []
        self._script = nodes.axe()

    def check(self, name: str) -> None:
        """Checks what the page shows now."""
        self.page.evaluate(self._script + "; 0")
        found = self.page.evaluate(f"axe.run(document, {json.dumps(self.RULES)}).then(r => r.violations)")
        self.broken.extend(f"{name}: {one['id']}: {one['nodes'][0]['html'][:120]}" for one in found)

    def check_at_every_look(self, name: str, open_it: Callable[[], None]) -> None:
        """Opens a page at every size and in every theme, and checks it."""
        for theme in THEMES:
            for size, wide, high, phone in SIZES:
                if phone and theme == "dark":
                    continue  # the colours of a phone are those of a desk
                set_look(self.page, theme, wide, high, phone)
                open_it()
                # A form leads to a page whose style sheet may come later than its heading.
                has_heading = "document.querySelector('main h1') !== null"
                self.page.wait_for(f"document.readyState === 'complete' && {has_heading}")
                self.check(f"{name} {theme} {size}")
                if phone:
                    wider = self.page.evaluate("document.documentElement.scrollWidth > innerWidth")
                    self.broken.extend([f"{name} is wider than a phone"] if wider else [])
                    cut = self.page.evaluate(CUT_OFF)
                    self.broken.extend(f"{name} cuts off the table {table} on a phone" for table in cut)
                    hidden = self.page.evaluate(CURRENT_IS_HIDDEN)
                    self.broken.extend([f"{name} hides the name of the page on a phone"] if hidden else [])


async def test_no_page_breaks_a_rule_of_accessibility_and_none_has_an_error(
    url: str, browser: Browser, tmp_path: Path
) -> None:
    page = browser.page()
    inspector = await asyncio.to_thread(Inspector, page)

    def look(base: str, paths: dict[str, str], ready: str) -> None:
        for name, path in paths.items():
            inspector.check_at_every_look(name, lambda path=path: page.goto(base + path))  # type: ignore[misc]
            if name.startswith("history") or name == "audit":
                empty = page.evaluate("[...document.querySelectorAll('main .empty')].map(e => e.innerText)")
                assert not empty, f"{name} shows no data: {empty}"

        def refused() -> None:
            page.goto(f"{base}/jobs")
            fields = {"verb": "retry", "confirm": "yes", "job": f"search-index/{ready}"}
            page.evaluate(f"""(() => {{
                const form = document.createElement("form");
                form.method = "post";
                form.action = "/jobs/bulk";
                for (const [name, value] of Object.entries({json.dumps(fields)})) {{
                    const field = document.createElement("input");
                    [field.name, field.value] = [name, value];
                    form.append(field);
                }}
                document.body.append(form);
                form.submit();
            }})()""")
            shows(page, "left as they are", "h1")

        def dry_run() -> None:
            page.goto(f"{base}/dead?queue=payments")
            page.click("#replay")
            shows(page, "Replay", "h1")

        def help_is_open() -> None:
            page.goto(base)
            live(page)
            page.press("?")
            shows(page, "Keyboard", "#help")

        def question_is_open() -> None:
            page.goto(base + paths["job-running"])
            live(page)
            page.click("button", "Cancel")
            page.wait_for("document.querySelector('#sure').open")

        for open_it in (refused, dry_run, help_is_open, question_is_open):
            inspector.check_at_every_look(open_it.__name__, open_it)
        inspector.check_at_every_look("did", lambda: page.goto(f"{base}/?did=retried&n=3"))
        live(page)

    lake = make_history(tmp_path)
    async with open_shop(url) as shop:
        async with Server(app(shop.queues, lake=lake), grace=1) as server:
            await asyncio.wait_for(shop.find_failures(), 60)
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
                await client.post("/api/v1/queues/search-index/pause")  # a row of the audit log
            ready = (await shop.search.add("index", {"document": 1})).id
            paths = {**pages_of(shop), "error": "/queue?name=none"}
            await asyncio.to_thread(look, server.url, paths, ready)
        known = ("name=none", "404")
        inspector.broken += [error for error in page.errors if not any(word in error for word in known)]
        # The server has ended: the page says so.
        await asyncio.to_thread(shows, page, "The dashboard does not answer", "#away")
        for theme in THEMES:
            await asyncio.to_thread(set_look, page, theme, *SIZES[0][1:])
            await asyncio.to_thread(inspector.check, f"away {theme}")
    assert "\n".join(inspector.broken) == ""
