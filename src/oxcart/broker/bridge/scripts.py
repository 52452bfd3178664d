"""The Lua scripts of the Bridge protocol; see ``oxcart.broker.scripts`` for how they are put together."""

from __future__ import annotations

from functools import cache

from oxcart.broker.scripts import Script, read, verbs_of

__all__ = ["Script", "load", "verbs"]


@cache
def load(verb: str) -> Script:
    """Reads a script by its verb, for example ``claim``."""
    return read(__package__, verb)


def verbs() -> list[str]:
    """The verbs of all scripts."""
    return verbs_of(__package__)
