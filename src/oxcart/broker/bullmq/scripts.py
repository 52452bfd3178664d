"""The Lua scripts of ``lua/``, with their shared parts put in and their SHA known.

A script names the parts it stands on in a line ``-- include: base gate``; parts are put in before the
script's own text, in that order. Scripts run by SHA; a server that does not know one is sent the text.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_INCLUDE = re.compile(r"^-- include: (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$")


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its verb, its whole text, and the SHA by which a server knows it."""

    verb: str
    text: bytes
    sha: bytes


def _lean(text: str) -> str:
    """Drops comments and blank lines: they are for readers, not for the wire."""
    kept = (line.rstrip() for line in text.splitlines() if not _COMMENT.match(line))
    return "\n".join(line for line in kept if line)


@cache
def load(verb: str) -> Script:
    """Reads a script by its verb, for example ``claim``."""
    folder = files(__package__) / "lua"
    own = (folder / f"{verb}.lua").read_text("utf-8")
    found = _INCLUDE.search(own)
    parts = found.group(1).split() if found else []
    whole = [(folder / "parts" / f"{part}.lua").read_text("utf-8") for part in parts]
    text = _lean("\n".join([*whole, own])).encode()
    return Script(verb, text, hashlib.sha1(text).hexdigest().encode())


def verbs() -> list[str]:
    """The verbs of all scripts."""
    folder = files(__package__) / "lua"
    return sorted(item.name.removesuffix(".lua") for item in folder.iterdir() if item.name.endswith(".lua"))
