"""docs/dashboard.md: its tables are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from oxcart.http.web import actions, dead, history, jobs, live, pulse
from tests.http.test_access import PAGES
from tests.http.web.screenshots import PAGES as PICTURES

PAGE = (Path(__file__).parents[3] / "docs" / "dashboard.md").read_text("utf-8")
STATIC = Path(__file__).parents[3] / "src" / "oxcart" / "http" / "web" / "static"


def test_the_pages_and_their_roles_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `(/\w*)` \| (\w+) \|", PAGE, re.MULTILINE))
    pages = {
        route.removeprefix("GET "): role
        for route, role in PAGES.items()
        if route.startswith("GET ") and not route.endswith("/events") and role and route != "GET /search"
    }
    assert rows == pages


def test_every_page_has_a_picture_and_a_check_of_accessibility() -> None:
    routes = {route.removeprefix("GET ") for route in PAGES if route.startswith("GET ")}
    pages = {path for path in routes if not path.endswith("/events")} - {"/search", "/static/{file}"}
    assert {path.partition("?")[0] for path in PICTURES.values()} == {*pages, "/sign-in"}
    # The history page has two faces.
    assert {path for path in PICTURES.values() if path.startswith("/history")} == {
        "/history" if face == history.FACES[0] else f"/history?view={face}" for face in history.FACES
    }


def test_the_bounds_are_those_of_the_code() -> None:
    assert (actions.MOST, dead.MOST, jobs.FILTERED, jobs.ROWS) == (1000, 10_000, 5000, 50)
    assert (live.MOST_PAGES, live.MOST_VIEWERS) == (200, 1000)
    assert (pulse.FRESH, pulse.SELDOM, pulse.MOST_EVENTS, pulse.FAILING_QUEUES) == (2, 10, 300, 10)


def test_every_key_of_the_page_is_handled_by_the_script() -> None:
    script = (STATIC / "oxcart.js").read_text("utf-8")
    table = PAGE.partition("## Keys")[2].partition("\n\n")[2]
    keys = re.findall(r"`([^`]+)`", "".join(re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)))
    for key in keys:
        assert key == "Enter" or re.search(
            rf'^  "?{re.escape(key)}"?:|"{re.escape(key)}"', script, re.MULTILINE
        ), key
