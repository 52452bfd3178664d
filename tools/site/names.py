"""The reference of the Python names, generated from their docstrings.

A page lists objects; the generator reads their docstrings and signatures from the source. The parts of a
queue are found on a queue, and the rest by the names that each module exports, so that a new public name
needs no change here, but a place in docs/api.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

import oxcart
from tools.site.pages import ROOT

_API = ROOT / "docs" / "api.md"
#: Pages of names at the root, by what a reader looks for. A name that is missing here is on the last page.
ROOT_PAGES = {
    "queue": ("Queue", ("Queue",)),
    "worker": ("Worker and handlers", ("Worker", "RunningJob", "SyncRunningJob", "current_job", "Depends")),
    "flow": ("Flows and graphs", ("Flow", "Graph")),
    "job": (
        "Jobs and their values",
        ("Job", "JobHandle", "JobOptions", "Event", "Backoff", "Target", "Abilities"),
    ),
    "outcome": ("What a handler returns or raises", ()),
}
#: Pages of other modules.
MODULE_PAGES = {
    "errors": ("Errors", ("oxcart.errors",)),
    "testing": ("Testing", ("oxcart.testing",)),
    "observe": (
        "Traces, metrics, failures and log fields",
        (
            "oxcart.observe.tracing",
            "oxcart.observe.meters",
            "oxcart.observe.errors",
            "oxcart.observe.sentry",
            "oxcart.observe.logs",
        ),
    ),
    "more": (
        "Events, webhooks, encryption, HTTP, history, Spark",
        (
            "oxcart.events",
            "oxcart.jobs",
            "oxcart.webhooks",
            "oxcart.encryption",
            "oxcart.http",
            "oxcart.history.reader",
            "oxcart.spark",
        ),
    ),
}


def pages() -> dict[str, str]:
    """Returns the pages of Python names by their places."""
    placed = {name for _, names in ROOT_PAGES.values() for name in names}
    rest = tuple(name for name in oxcart.__all__ if name not in placed)
    found: dict[str, str] = {}
    shown: set[Any] = set()
    for place, (title, names) in ROOT_PAGES.items():
        objects = [getattr(oxcart, name) for name in names or rest]
        if place == "queue":
            objects += queue_parts()
        found[f"reference/{place}.md"] = _page(title, objects)
        shown.update(objects)
    for place, (title, modules) in MODULE_PAGES.items():
        found[f"reference/{place}.md"] = _page(
            title, (one for name in modules for one in _exported(name) if one not in shown)
        )
    return found


def queue_parts() -> list[type]:
    """Returns the classes of the parts of a queue: its jobs, dead letters, schedules and so on."""
    queue = oxcart.Queue("reference")
    parts = (getattr(queue, name) for name in dir(oxcart.Queue) if not name.startswith("_"))
    classes = (type(one) for one in parts if type(one).__module__.startswith("oxcart."))
    return [one for one in dict.fromkeys(classes) if one.__module__ in _PART_MODULES]


_PART_MODULES = {
    f"oxcart.{name}"
    for name in (
        "dead_letters",
        "deduplication",
        "events",
        "flow",
        "jobs",
        "lanes",
        "partitions",
        "limits",
        "schedules",
        "workers",
    )
}


def _exported(module: str) -> Iterator[Any]:
    """Yields the public objects of a module: those that it exports, or that docs/api.md lists."""
    loaded = import_module(module)
    row = re.search(rf"^\| `{re.escape(module)}` \|(.*)$", _API.read_text(), re.MULTILINE)
    listed = re.findall(r"`(\w+)`", row[1]) if row else []
    for name in getattr(loaded, "__all__", listed):
        one = getattr(loaded, name)
        if getattr(one, "__module__", "").startswith("oxcart") and hasattr(one, "__qualname__"):
            yield one


def _page(title: str, objects: Iterable[Any]) -> str:
    parts = [f"# {title}", "Generated from the docstrings. `oxcart.sync` has the same names without `await`."]
    for one in dict.fromkeys(objects):
        parts.append(f"::: {one.__module__}.{one.__qualname__}")
    return "\n\n".join(parts) + "\n"
