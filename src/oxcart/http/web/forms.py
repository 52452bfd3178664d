"""Forms: the way back after an action, and what the action did."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from litestar.response import Response

from oxcart.http.sessions import root_of, safe_next
from oxcart.http.web.page import AnyRequest

#: What an action did, as the next page says it. ``n`` is a number, nothing else of the address is shown.
DONE = {
    "paused": "The queue is paused. Running jobs continue.",
    "resumed": "The queue runs again.",
    "group-paused": "The group is paused. Its running jobs continue.",
    "group-resumed": "The group takes turns again.",
    "retried": "{n} {jobs} will run again.",
    "cancelled": "{n} {jobs} cancelled.",
    "asked": "The worker was asked to stop the job.",
    "removed": "{n} {jobs} removed.",
    "promoted": "{n} {jobs} made ready.",
    "replayed": "{n} dead {letters} replayed.",
    "purged": "{n} dead {letters} removed for good.",
    "schedule-paused": "The schedule is paused. A run that is due or running is its last.",
    "schedule-resumed": "The schedule runs again.",
    "unscheduled": "The schedule is removed.",
    "ran": "A job was added as the schedule would have.",
    "limited": "The limits are set.",
    "cleaned": "{n} {jobs} removed.",
}


def done(request: AnyRequest, back: str, did: str, count: int = 1) -> Response[Any]:
    """Leads back to a page, which says what an action did."""
    path, _, query = safe_next(back).partition("?")
    added = urlencode({"did": did, "n": count})
    place = f"{root_of(request)}{path}?{query + '&' if query else ''}{added}"
    return Response(None, status_code=303, headers={"Location": place})


def flash(request: AnyRequest) -> str:
    """Returns what the action before this page did; empty if there was none."""
    words = DONE.get(request.query_params.get("did", ""), "")
    count = request.query_params.get("n", "")
    number = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0
    one = number == 1
    return words.format(
        n=f"{number:,}", jobs="job" if one else "jobs", letters="letter" if one else "letters"
    )
