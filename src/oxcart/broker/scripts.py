"""The Lua scripts of a protocol's ``lua/``, with their shared parts put in and their SHA known.

A script names the parts it stands on in a line ``-- include: base gate``; parts are put in before the
script's own text, in that order, without unused functions: a server makes all functions of a script anew
for every call. A part may name others in such a line, which they take; those that protocols share are in
``broker/lua/``. For the same reason what a call seldom needs can be named in a second line,
``-- include when needed: parent``: its functions are made when the first of them is asked for, as
``seldom().child_failed(…)``. Scripts run by SHA; a server that does not know one is sent the text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

_INCLUDE = re.compile(r"^-- include: (.+)$", re.MULTILINE)
_LATER = re.compile(r"^-- include when needed: (.+)$", re.MULTILINE)
_SELDOM = re.compile(r"\bseldom\(\)\.(\w+)")
_HEAD = (
    "local seldom_made\nlocal function seldom()\n  if not seldom_made then\n    seldom_made = (function()\n"
)
_TAIL = "    end)()\n  end\n  return seldom_made\nend\n"
#: Parts that every protocol may name.
_SHARED = files(__package__) / "lua"
#: Every script begins so. Whenever a script makes something new, Lua's collector sweeps some of what calls
#: before it left: by default all of it within one or two long calls. A quarter of the pace makes that many
#: short pieces. The setting is the server's own and stays: scripts of others gain by it as well. What waits
#: to be swept takes a few MB at most. Called without a key it does nothing: the server has compiled it then.
_FIRST = 'collectgarbage("setstepmul", 50)\nif not KEYS[1] then return end\n'
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


def _needed(parts: str, text: str, known: str = "") -> str:
    """What a text needs of some parts, directly or through each other, without what is known already.

    Nothing is used before it is declared, so one look at each declaration from the last to the first will do.
    """
    starts = [found.start() for found in _DECLARED.finditer(parts)]
    needed = ""
    for start, end in reversed(list(zip(starts, [*starts[1:], len(parts)], strict=True))):
        declared = _DECLARED.match(parts, start)
        assert declared is not None
        piece = parts[start:end].rstrip() + "\n"
        names = [name.strip() for name in declared.group(1).split(",")]
        if piece not in known and any(re.search(rf"\b{name}\b", needed + text) for name in names):
            needed = piece + needed
    return needed


def _part(folder: Traversable, name: str) -> str:
    """The text of a part: the protocol's own, or one that all share."""
    own = folder / "parts" / f"{name}.lua"
    text = (own if own.is_file() else _SHARED / f"{name}.lua").read_text("utf-8")
    return _INCLUDE.sub(lambda line: "\n".join(_part(folder, one) for one in line[1].split()), text)


@cache
def read(package: str, verb: str) -> Script:
    """Reads a script of a package by its verb, for example ``claim``."""
    folder = files(package) / "lua"
    source = (folder / f"{verb}.lua").read_text("utf-8")

    def named(line: re.Pattern[str]) -> list[str]:
        found = line.search(source)
        return found.group(1).split() if found else []

    def parts(names: Iterable[str]) -> str:
        return _lean("\n".join(_part(folder, name) for name in names))

    own, at_once, later = _lean(source), named(_INCLUDE), named(_LATER)
    first = _needed(parts(at_once), _SELDOM.sub("", own))
    if later:
        asked = sorted(set(_SELDOM.findall(own)))
        seldom = _needed(parts(later), " ".join(asked), first)
        first += _needed(parts(name for name in at_once if name not in later), seldom, first)
        fields = ", ".join(f"{name} = {name}" for name in asked)
        own = f"{_HEAD}{seldom}return {{ {fields} }}\n{_TAIL}{own}"
    text = (_FIRST + first + own).encode()
    return Script(verb, text, hashlib.sha1(text).hexdigest().encode())


def verbs_of(package: str) -> list[str]:
    """The verbs of all scripts of a package."""
    folder = files(package) / "lua"
    return sorted(item.name.removesuffix(".lua") for item in folder.iterdir() if item.name.endswith(".lua"))
