"""Pages: what a page shows, and how it is rendered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import Request, Response
from markupsafe import Markup

from oxcart.drawing.timeline import duration
from oxcart.http.credentials import caller_of
from oxcart.http.sessions import root_of
from oxcart.model.access import Role
from oxcart.observe.terminal import clean_lines

FOLDER = Path(__file__).parent

THEMES = ("light", "dark")

AnyRequest = Request[Any, Any, Any]


def role_of(request: AnyRequest) -> Role:
    """Returns the caller's highest role on any queue."""
    caller = caller_of(request)
    return Role.OBSERVER if caller is None else caller.role


def here(request: AnyRequest) -> str:
    """Returns the page's own address below the mount, with its query, for the way back after an action."""
    pairs = [(name, value) for name, value in request.query_params.multi_items() if name not in ("did", "n")]
    return request.url.path.removeprefix(root_of(request)) + (f"?{urlencode(pairs)}" if pairs else "")


# -- filters


def _number(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:.3g} M"
    if value >= 100_000:
        return f"{value / 1000:.3g} k"
    return f"{int(value):,}"


def _rate(value: float) -> str:
    return (
        "0"
        if not value
        else f"{value:.2f}"
        if value < 1
        else f"{value:,.1f}"
        if value < 100
        else f"{value:,.0f}"
    )


def _time(ms: int | float | str | None, kind: str = "ago") -> Markup:
    """A time, which the script shows in the viewer's zone; UTC is its tooltip.

    Args:
        ms: The time in ms or in RFC 3339, or None.
        kind: ``ago`` for how long ago, ``at`` for the time of day, ``full`` for both.
    """
    if isinstance(ms, str):
        ms = datetime.fromisoformat(ms).timestamp() * 1000
    if ms is None or not 0 <= ms < 253_402_300_800_000:
        return Markup('<span class="none">–</span>')
    at = datetime.fromtimestamp(ms / 1000, UTC)
    iso = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    text = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}" data-time="{}">{}</time>').format(iso, text, kind, text)


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=repr)


def _short(text: str, most: int = 12) -> str:
    return text if len(text) <= most else f"{text[: most - 5]}…{text[-4:]}"


def _percent(value: float) -> str:
    share = 100 * value
    return f"{share:.0f} %" if share >= 10 or not share else f"{share:.1f} %"


def link(path: str, **query: Any) -> str:
    """Returns an address below the mount; parameters that are None or empty are left out."""
    pairs = [(name, value) for name, value in query.items() if value not in (None, "", [])]
    # A name that a peer stored may be no text; half of a character must not cost the page.
    return f"{path}?{urlencode(pairs, doseq=True, errors='surrogatepass')}" if pairs else path


_STATES = {
    "pending": "Pending",
    "scheduled": "Scheduled",
    "delayed": "Delayed",
    "running": "Running",
    "completed": "Completed",
    "failed": "Failed",
    "retrying": "Retrying",
    "dead_letter": "Dead letter",
    "cancelled": "Cancelled",
    "ready": "Scheduled",
    "all": "All",
}


def state_name(state: str) -> str:
    """Returns a state as people read it."""
    return _STATES.get(state, state)


def _pill(state: str) -> Markup:
    return Markup('<span class="pill s-{0}"><i></i>{1}</span>').format(
        state if state in _STATES else "unknown", state_name(state)
    )


def _finish(value: Any) -> Any:
    """Shows characters that steer a terminal or swap the direction of words as escapes."""
    return clean_lines(value) if type(value) is str else value


def environment() -> Environment:
    """Returns the templates. Every value is escaped; a missing one is an error."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finish,
        auto_reload=False,
    )
    made.filters |= {
        "number": _number,
        "rate": _rate,
        "time": _time,
        "duration": duration,
        "pretty": _pretty,
        "short": _short,
        "percent": _percent,
        "pill": _pill,
        "state": state_name,
    }
    made.globals |= {"link": link, "Role": Role}
    return made


class Pages:
    """Renders views."""

    def __init__(self) -> None:
        self._templates = environment()

    def part(self, name: str, values: Mapping[str, Any]) -> str:
        """Renders a live part."""
        return self._templates.get_template(f"parts/{name}.html").render(values)

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """Renders a page."""
        return self._templates.get_template(template).render(values)


def html(text: str, status: int = 200) -> Response[str]:
    """Returns an answer with a page."""
    return Response(text, status_code=status, media_type="text/html; charset=utf-8")
