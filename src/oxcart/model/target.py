"""Targets of jobs, abilities of workers, and the names of lanes.

A lane is a queue whose name contains the target of its jobs: ``video@all;c=gpu;r=us-east``. The name can be
parsed, so a producer without Oxcart can add to a lane too (docs/decisions/60-lanes.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import quote, unquote

from oxcart.model.errors import ValidationError

Mode = Literal["any", "all"]
#: What a user may pass for one category: a word or several.
Words = str | Iterable[str]

#: The longest word in characters, and the most words of a category.
MAX_WORD = 128
MAX_WORDS = 32

_MODES = ("all", "any")
#: The parts of a lane's name, in order.
_LETTERS = {"id": "server", "s": "stack", "c": "capabilities", "r": "region"}
_LONG = {name: name for name in _LETTERS.values()}
# A word in a name: characters that every client and shell keeps, and the rest as %XX.
_WORD = r"(?:[A-Za-z0-9._-]|%[0-9A-Fa-f]{2})+"
_PART = re.compile(rf"([a-z]+)=({_WORD}(?:,{_WORD})*)")


@dataclass(frozen=True, slots=True)
class Target:
    """The workers that may run a job.

    Each category has a word or several, sorted and without duplicates.

    Raises:
        ValidationError: A word is empty, too long or no text, there are too many, or the mode is unknown.

    Example:
        >>> Target(capabilities="gpu", region=["us-east", "us-west"])
        Target(server=None, stack=(), capabilities=('gpu',), region=('us-east', 'us-west'), mode='all')

    Attributes:
        server: The name of the only worker that may run it; if set, it alone decides.
        stack: The worker's stack must be one of these, for example ``python`` or ``node``.
        capabilities: Capabilities that the worker needs: all, or with ``mode="any"`` one of them.
        region: The worker's region must be one of these.
        mode: ``all``: the worker must meet every category of the target. ``any``: one suffices.
    """

    server: str | None = None
    stack: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    region: tuple[str, ...] = ()
    mode: Mode = "all"

    def __init__(
        self,
        server: str | None = None,
        stack: Words = (),
        capabilities: Words = (),
        region: Words = (),
        mode: Mode = "all",
    ) -> None:
        if mode not in _MODES:
            raise ValidationError("target mode", "'any' or 'all'", mode)
        _set(self, "server", None if server is None else _word(server, "target server"))
        _set(self, "stack", _words(stack, "target stack"))
        _set(self, "capabilities", _words(capabilities, "target capabilities"))
        _set(self, "region", _words(region, "target region"))
        # The mode of an empty target has no meaning.
        _set(self, "mode", mode if self else "all")

    def __bool__(self) -> bool:
        return bool(self.server is not None or self.stack or self.capabilities or self.region)

    def __str__(self) -> str:
        """Returns the target as in the name of a lane: ``all;c=gpu;r=us-east``."""
        parts: list[str] = [self.mode]
        for letter, name in _LETTERS.items():
            value = getattr(self, name)
            if value:
                parts.append(
                    f"{letter}={','.join(map(_escape, [value] if isinstance(value, str) else value))}"
                )
        return ";".join(parts)

    def matches(self, abilities: Abilities) -> bool:
        """Returns whether a worker with these abilities may run the job."""
        if self.server is not None:
            return self.server == abilities.server
        met = []
        if self.stack:
            met.append(not abilities._stack.isdisjoint(self.stack))
        if self.capabilities and self.mode == "all":
            met.append(abilities._capabilities.issuperset(self.capabilities))
        elif self.capabilities:
            met.append(not abilities._capabilities.isdisjoint(self.capabilities))
        if self.region:
            met.append(not abilities._region.isdisjoint(self.region))
        return not met or (all(met) if self.mode == "all" else any(met))

    @classmethod
    def read(cls, value: Any, field: str = "target") -> Target:
        """Returns a target from a `Target`, a mapping of its attributes, or text (see ``parse``).

        Raises:
            ValidationError: The value is none of these.
        """
        if isinstance(value, Target):
            return value
        if isinstance(value, str):
            return cls.parse(value, field)
        if isinstance(value, Mapping):
            known = {one.name for one in fields(cls)}
            for name in value:
                if name not in known:
                    raise ValidationError(
                        f"{field} {name}", f"one of {', '.join(sorted(known))}", value[name]
                    )
            return cls(**value)
        raise ValidationError(field, "a Target, a mapping of its attributes, or text", value)

    @classmethod
    def parse(cls, text: str, field: str = "target") -> Target:
        """Parses ``all;c=gpu;r=us-east``. The mode is optional, and categories may have their full names.

        Raises:
            ValidationError: The text is invalid.

        Example:
            >>> Target.parse("any;capabilities=gpu,tpu;region=us-east") == Target(
            ...     capabilities=("gpu", "tpu"), region="us-east", mode="any")
            True
        """
        read = _read(text, _LETTERS | _LONG)
        if read is None:
            bound = "like 'all;c=gpu,cuda;r=us-east' (id, s, c, r; other characters as %XX)"
            raise ValidationError(field, bound, text)
        return read


@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities of a worker.

    Attributes:
        server: Its id.
        stack: Its stack, by default ``python``.
        capabilities: Its capabilities.
        region: Its region.

    Raises:
        ValidationError: A word is empty, too long or no text, or there are too many.
    """

    server: str | None
    stack: tuple[str, ...]
    capabilities: tuple[str, ...]
    region: tuple[str, ...]
    _stack: frozenset[str]
    _capabilities: frozenset[str]
    _region: frozenset[str]

    def __init__(
        self,
        server: str | None = None,
        stack: Words = ("python",),
        capabilities: Words = (),
        region: Words = (),
    ) -> None:
        _set(self, "server", None if server is None else _word(server, "abilities server"))
        for name, value in (("stack", stack), ("capabilities", capabilities), ("region", region)):
            words = _words(value, f"abilities {name}", most=None)
            _set(self, name, words)
            _set(self, f"_{name}", frozenset(words))

    def __repr__(self) -> str:
        parts = (f"{name}={getattr(self, name)!r}" for name in _LONG)
        return f"Abilities({', '.join(parts)})"

    def named(self, server: str) -> Abilities:
        """Returns the same abilities with this id."""
        return Abilities(server, self.stack, self.capabilities, self.region)

    @classmethod
    def read(cls, value: Any, field: str = "abilities") -> Abilities:
        """Returns abilities from `Abilities` or a mapping of their attributes.

        Raises:
            ValidationError: The value is neither.
        """
        if isinstance(value, Abilities):
            return value
        if not isinstance(value, Mapping):
            raise ValidationError(field, "Abilities, or a mapping of their attributes", value)
        for name in value:
            if name not in _LONG:
                raise ValidationError(f"{field} {name}", f"one of {', '.join(_LONG)}", value[name])
        return cls(**value)


def lane_name(base: str, target: Target) -> str:
    """Returns the name of the lane for a target, or the queue's own name for an empty target.

    Raises:
        ValidationError: The queue is itself a lane.

    Example:
        >>> lane_name("video", Target(capabilities="gpu", region="us-east"))
        'video@all;c=gpu;r=us-east'
    """
    if parse_lane(base) is not None:
        raise ValidationError("target", "for a queue that is not itself a lane", base)
    return f"{base}@{target}" if target else base


def parse_lane(name: str) -> tuple[str, Target] | None:
    """Returns the queue of a lane and the target of its jobs, or None if the name is no lane.

    Example:
        >>> parse_lane("video@any;c=gpu,tpu")[1].mode
        'any'
        >>> parse_lane("ada@example.com") is None
        True
    """
    base, sign, text = name.rpartition("@")
    if not sign or not base or parse_lane(base) is not None:
        return None
    mode, _, _ = text.partition(";")
    target = _read(text, _LETTERS) if mode in _MODES else None
    return (base, target) if target else None


def base_of(name: str) -> str:
    """Returns the queue of a lane, or the name itself if it is no lane."""
    return split_lane(name)[0]


@lru_cache(maxsize=4096)
def split_lane(name: str) -> tuple[str, str | None]:
    """Returns the queue of a lane and its name within it (``all;c=gpu``), or None if it is no lane."""
    found = parse_lane(name) if "@" in name else None
    return (name, None) if found is None else (found[0], name[len(found[0]) + 1 :])


def _read(text: str, names: Mapping[str, str]) -> Target | None:
    parts = text.split(";")
    mode = parts.pop(0) if parts[0] in _MODES else "all"
    found: dict[str, list[str]] = {}
    for part in parts:
        read = _PART.fullmatch(part)
        name = names.get(read[1]) if read else None
        if read is None or name is None or name in found:
            return None
        try:
            found[name] = [unquote(word, errors="strict") for word in read[2].split(",")]
        except UnicodeDecodeError:
            return None
    server = found.pop("server", [None])
    if len(server) > 1:
        return None
    try:
        return Target(server[0], **found, mode=mode)  # type: ignore[arg-type]
    except ValidationError:
        return None


def _escape(word: str) -> str:
    # `quote` does not escape "~", which the names of hidden queues contain.
    return quote(word, safe="").replace("~", "%7E")


def _words(value: Words, field: str, most: int | None = MAX_WORDS) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_word(value, field),)
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping):
        raise ValidationError(field, "a string or several", value)
    words = tuple(sorted({_word(word, field) for word in value}))
    if most is not None and len(words) > most:
        raise ValidationError(field, f"at most {most} words", len(words))
    return words


def _word(value: Any, field: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_WORD:
        raise ValidationError(field, f"text of 1 to {MAX_WORD} characters", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise ValidationError(field, "text that UTF-8 can hold", value) from error
    return value


_set = object.__setattr__
