"""The Lua scripts of BullMQ's protocol; ``oxcart.broker.scripts`` assembles them."""

from __future__ import annotations

from functools import cache

from oxcart.broker.scripts import Script, read, verbs_of

__all__ = ["Script", "load", "verbs"]


@cache
def load(verb: str) -> Script:
    """Reads a script by its verb, for example ``claim``."""
    return read(__package__, verb)


def verbs() -> list[str]:
    """Returns the verbs of all scripts."""
    return verbs_of(__package__)
