"""The tests' own browser: it sees and does what happens on a page."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.browser import Browser, BrowserError
from tests.servers import free_port

_PAGE = b"""<!doctype html><title>t</title><link rel="icon" href="data:,">
<input id="name"><button onclick="document.title = document.querySelector('#name').value">go</button>
<p id="far" style="margin-top: 3000px" onclick="throw new Error('far away')">far</p>"""


class _Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/" else 404)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(_PAGE if self.path == "/" else b"")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


def test_a_page_is_used_as_a_person_would(browser: Browser, site: str, tmp_path: Path) -> None:
    page = browser.page()
    page.goto(site)
    page.type("#name", "Ada")
    page.click("button")
    page.wait_for("document.title === 'Ada'")
    assert page.requests == [site]
    assert page.errors == []
    page.click("#far")
    page.wait_for("true")
    assert [error.splitlines()[0] for error in page.errors] == ["uncaught: Error: far away"]
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_page_records_console_and_network_errors(browser: Browser, site: str) -> None:
    page = browser.page()
    page.goto(site)
    assert page.evaluate("fetch('/missing').then(answer => answer.status)") == 404
    page.evaluate("console.error('no', 7)")
    assert "console.error: no 7" in page.errors
    assert f"404: {site}missing" in page.errors
    with pytest.raises(BrowserError, match="nothing"):
        page.evaluate("(() => { throw new Error('nothing') })()")
    with pytest.raises(BrowserError, match="CONNECTION_REFUSED"):
        page.goto(f"http://127.0.0.1:{free_port()}/")


def test_closed_browser_leaves_no_process_and_no_folder() -> None:
    browser = Browser()
    folder, pid = browser._folder, browser._process.pid
    browser.close()
    assert not os.path.exists(folder)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
