"""Reads the Lua scripts of a protocol's ``lua/``, with their shared parts and their SHA.

A script names its parts in a line ``-- include: base gate``. They are inserted before the script's own text,
in that order, without unused functions: a server creates all functions of a script again for every call. A
part may name others in such a line. ``broker/lua/`` has the parts that protocols share. A second line,
``-- include when needed: parent``, names parts that a call seldom needs. Their functions are created at the
first use, as ``seldom().child_failed(…)``. Scripts run by SHA; a server that does not know one receives the
text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_INCLUDE = re.compile(r"^-- include: (.+)$", re.MULTILINE)
_LATER = re.compile(r"^-- include when needed: (.+)$", re.MULTILINE)
_SELDOM = re.compile(r"\bseldom\(\)\.(\w+)")
_HEAD = (
    "local seldom_made\nlocal function seldom()\n  if not seldom_made then\n    seldom_made = (function()\n"
)
_TAIL = "    end)()\n  end\n  return seldom_made\nend\n"
#: Parts that every protocol may name.
_SHARED = files(__package__) / "lua"
#: The beginning of every script. Whenever a script allocates, Lua's collector sweeps some garbage of earlier
#: calls: by default all of it within one or two long calls. A quarter of the pace makes that many short
#: pieces. The setting is the server's own and stays, so scripts of others benefit too. The unswept garbage
#: is a few MB at most. A call without a key only makes the server compile the script.
_FIRST = 'collectgarbage("setstepmul", 50)\nif not KEYS[1] then return end\n'
#: The locals that most functions of a script use.
_INNER = re.compile(r"(?:local (?:call|P) = .*\n)+")
_COMMENT = re.compile(r"^\s*--.*$")
_WORD = re.compile(r"\w+")
#: A declaration in a part: a function, one or several values, or the body of a function declared before.
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
    """Returns the declarations of some parts that a text needs, directly or not, but for known ones.

    Nothing is used before it is declared, so one pass from the last declaration to the first suffices.
    """
    found = list(_DECLARED.finditer(parts))
    ends = [*(declared.start() for declared in found[1:]), len(parts)]
    needed: list[str] = []
    words = set(_WORD.findall(text))
    for declared, end in zip(reversed(found), reversed(ends), strict=True):
        piece = parts[declared.start() : end].rstrip() + "\n"
        if words.isdisjoint(_WORD.findall(declared.group(1))) or piece in known:
            continue
        needed.append(piece)
        words.update(_WORD.findall(piece))
    return "".join(reversed(needed))


@cache
def _part(package: str, name: str) -> str:
    """Returns the text of a part: the package's own, or a shared one."""
    own = files(package) / "lua" / "parts" / f"{name}.lua"
    text = (own if own.is_file() else _SHARED / f"{name}.lua").read_text("utf-8")
    return _INCLUDE.sub(lambda line: "\n".join(_part(package, one) for one in line[1].split()), text)


@cache
def read(package: str, verb: str) -> Script:
    """Reads a script of a package by its verb, for example ``claim``."""
    source = (files(package) / "lua" / f"{verb}.lua").read_text("utf-8")

    def named(line: re.Pattern[str]) -> list[str]:
        found = line.search(source)
        return found.group(1).split() if found else []

    def parts(names: Iterable[str]) -> str:
        return _lean("\n".join(_part(package, name) for name in names))

    own, at_once, later = _lean(source), named(_INCLUDE), named(_LATER)
    first = _needed(parts(at_once), _SELDOM.sub("", own))
    if later:
        asked = sorted(set(_SELDOM.findall(own)))
        seldom = _needed(parts(later), " ".join(asked), first)
        seldom = _needed(parts(name for name in at_once if name not in later), seldom, first) + seldom
        fields = ", ".join(f"{name} = {name}" for name in asked)
        own = f"{_HEAD}{seldom}return {{ {fields} }}\n{_TAIL}{own}"
    # A function within: a closure finds an outer local at once, one of its own function by a walk over all.
    start = _INNER.match(first)
    assert start is not None, f"{verb} includes no base"
    text = f"{_FIRST}{start[0]}return (function()\n{first[start.end() :]}{own}\nend)()".encode()
    return Script(verb, text, hashlib.sha1(text).hexdigest().encode())


def verbs_of(package: str) -> list[str]:
    """Returns the verbs of all scripts of a package."""
    folder = files(package) / "lua"
    return sorted(item.name.removesuffix(".lua") for item in folder.iterdir() if item.name.endswith(".lua"))
