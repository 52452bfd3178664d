"""The Lua scripts of ``lua/``, with their shared parts put in and their SHA known.

A script names the parts it stands on in a line ``-- include: base gate``; parts are put in before the
script's own text, in that order, without what nobody uses: a server makes all functions of a script anew for
every call. Scripts run by SHA; a server that does not know one is sent the text.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_INCLUDE = re.compile(r"^-- include: (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$")
#: Where a part declares something: a function, one or several values, or the body of a function named before.
_DECLARED = re.compile(r"^(?:local function|local|function) ([\w, ]+)", re.MULTILINE)


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


def _used(parts: str, own: str) -> str:
    """What the script needs of its parts, directly or through each other, and the script behind it.

    Nothing is used before it is declared, so one look at each declaration from the last to the first will do.
    """
    starts = [found.start() for found in _DECLARED.finditer(parts)]
    text = own
    for start, end in reversed(list(zip(starts, [*starts[1:], len(parts)], strict=True))):
        declared = _DECLARED.match(parts, start)
        assert declared is not None
        names = [name.strip() for name in declared.group(1).split(",")]
        if any(re.search(rf"\b{name}\b", text) for name in names):
            text = parts[start:end].rstrip() + "\n" + text
    return text


@cache
def load(verb: str) -> Script:
    """Reads a script by its verb, for example ``claim``."""
    folder = files(__package__) / "lua"
    own = (folder / f"{verb}.lua").read_text("utf-8")
    found = _INCLUDE.search(own)
    parts = found.group(1).split() if found else []
    whole = [(folder / "parts" / f"{part}.lua").read_text("utf-8") for part in parts]
    text = _used(_lean("\n".join(whole)), _lean(own)).encode()
    return Script(verb, text, hashlib.sha1(text).hexdigest().encode())


def verbs() -> list[str]:
    """The verbs of all scripts."""
    folder = files(__package__) / "lua"
    return sorted(item.name.removesuffix(".lua") for item in folder.iterdir() if item.name.endswith(".lua"))
