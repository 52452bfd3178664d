"""Filters of jobs as the scripts read them."""

from __future__ import annotations

import msgspec

from oxcart.model.filter import JobFilter

_json = msgspec.json.Encoder()


def filter_argument(chosen: JobFilter) -> bytes:
    """Returns a filter as an argument of a script; empty if every job matches."""
    given: dict[str, object] = {}
    if chosen.names:
        given["names"] = chosen.names
    if chosen.categories:
        given["categories"] = chosen.categories
    if chosen.reason:
        # Lua knows the case of ASCII letters only.
        given["reason"] = "".join(each.lower() if each.isascii() else each for each in chosen.reason)
    if chosen.tags:
        given["tags"] = chosen.tags
    if chosen.correlation_id is not None:
        given["correlation"] = chosen.correlation_id
    if chosen.since_ms is not None:
        given["since"] = chosen.since_ms
    if chosen.before_ms is not None:
        given["before"] = chosen.before_ms
    if chosen.permanent:
        given["permanent"] = True
    return _json.encode(given) if given else b""
