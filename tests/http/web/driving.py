"""What tests of the dashboard in a browser share."""

from __future__ import annotations

import json

from tests.browser import Page


def shows(page: Page, text: str, selector: str = "main") -> None:
    """Waits until an element shows a text."""
    page.wait_for(
        f"(document.querySelector({json.dumps(selector)})?.innerText ?? '').includes({json.dumps(text)})"
    )


def at(page: Page, path: str) -> None:
    """Waits until the browser is at an address, and its page is live."""
    page.wait_for(f"(location.pathname + location.search).startsWith({json.dumps(path)})")
    live(page)


def live(page: Page) -> None:
    page.wait_for("document.querySelector('#link-state.live') !== null")
