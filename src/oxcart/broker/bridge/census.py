"""Counts and finds the jobs of a Bridge namespace by type and target, for jobs of all clients.

The specification's lists hold ids of all types. Type and target of an id come from our index. Other records
are read once and remembered, because neither changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Container, Sequence
from typing import Literal, NamedTuple

import msgpack

from oxcart.broker.bridge import records
from oxcart.broker.bridge.keys import BridgeKeys
from oxcart.broker.caller import Caller
from oxcart.broker.discovery import glob_escape
from oxcart.broker.replies import text


class Kind(NamedTuple):
    """The constant facts of a job: its type, the lane of its target, and its priority."""

    type: str
    lane: str
    priority: int


def _kind(packed: bytes) -> Kind | None:
    """Returns the kind in stored facts; None where a peer has spoiled them, as the scripts judge it."""
    try:
        facts = msgpack.unpackb(packed, unicode_errors="surrogateescape")
    except (ValueError, msgpack.UnpackException):
        return None
    match facts:
        case [str(job_type), str(lane), int(priority), int(), int(), int()]:
            return Kind(job_type, lane, priority)
    return None


Place = Literal["waiting", "active", "delayed", "pending", "dead"]

#: Ids per read, and records per read.
PAGE = 1000
RECORDS = 100
#: Jobs of other clients whose kinds are remembered.
MOST_READ = 50_000
#: Up to this length the list itself is read; a longer one is counted by the index if both are equally long.
SHORT = 1000


class Census:
    """Counts and finds the jobs of a namespace.

    Args:
        keys: The namespace's keys.
        caller: The connection.
    """

    def __init__(self, keys: BridgeKeys, caller: Caller) -> None:
        self._keys = keys
        self._caller = caller
        self._read: dict[bytes, Kind] = {}

    async def kinds(self, ids: Sequence[bytes]) -> list[Kind | None]:
        """Returns the kinds of jobs; None for an id without a record."""
        if not ids:
            return []
        facts = await self._caller.command("HMGET", self._keys.facts(), *ids)
        found: dict[bytes, Kind] = {}
        for one, packed in zip(ids, facts, strict=True):
            if packed is not None and (kind := _kind(packed)) is not None:
                found[one] = kind
        strange = [one for one in ids if one not in found and one not in self._read]
        if len(self._read) + len(strange) > MOST_READ:
            self._read = {}
            strange = [one for one in ids if one not in found]
        for start in range(0, len(strange), RECORDS):
            part = strange[start : start + RECORDS]
            raws = await self._caller.command("MGET", *(self._keys.data(text(one)) for one in part))
            for one, raw in zip(part, raws, strict=True):
                if raw is not None:
                    known = records.read_facts(raw)[0]
                    self._read[one] = Kind(known.type, known.lane, known.priority)
        return [found.get(one) or self._read.get(one) for one in ids]

    async def pages(self, place: Place) -> AsyncIterator[list[bytes]]:
        """Yields all ids in a place, step by step; in order except for ``active``."""
        keys, command = self._keys, self._caller.command
        if place == "active":
            cursor = b""
            while cursor != b"0":
                cursor, ids = await command("SSCAN", keys.active(), cursor or b"0", "COUNT", PAGE)
                yield list(dict.fromkeys(ids))
            return
        verb, key = {
            "waiting": ("LRANGE", keys.waiting()),
            "dead": ("LRANGE", keys.dead_letters()),
            "delayed": ("ZRANGE", keys.delayed()),
            "pending": ("ZRANGE", keys.pending()),
        }[place]
        at = 0
        while ids := await command(verb, key, at, at + PAGE - 1):
            yield ids
            at += len(ids)

    async def count(self, place: Place) -> Counter[tuple[str, str]]:
        """Counts the jobs in a place, by type and lane; ids without a record do not count."""
        counted: Counter[tuple[str, str]] = Counter()
        async for ids in self.pages(place):
            counted.update(kind[:2] for kind in await self.kinds(ids) if kind is not None)
        return counted

    async def of_type(self, place: Place, job_type: str, targets: Container[str] | None = None) -> list[str]:
        """Returns the ids of a type's jobs in a place; with ``targets`` only of jobs with one of these."""
        found: list[str] = []
        async for ids in self.pages(place):
            for one, kind in zip(ids, await self.kinds(ids), strict=True):
                if kind is None or kind.type != job_type:
                    continue
                if targets is None or records.target_of(kind.lane) in targets:
                    found.append(text(one))
        return found

    async def is_indexed(self) -> bool:
        """Whether the list is long, and the index as long as the list."""
        waiting, listed = await self._caller.pipeline(
            [("LLEN", self._keys.waiting()), ("SCARD", self._keys.listed())]
        )
        return bool(waiting > SHORT and waiting == listed)

    async def types(self) -> list[str]:
        """Returns all job types of the namespace, sorted."""
        known = {text(raw) for raw in await self._caller.command("SMEMBERS", self._keys.types())}
        paused = {text(raw) for raw in await self._caller.command("SMEMBERS", self._keys.paused())}
        places: tuple[Place, ...] = ("waiting", "active", "delayed", "pending", "dead")
        for place in places:
            known |= {job_type for job_type, _ in await self.count(place)}
        return sorted(known | paused)

    async def unnoted_ends(self) -> dict[str, list[str]]:
        """Returns jobs that other clients completed and no worker recorded, by type, oldest first.

        Scans all keys of the server in steps.
        """
        base = self._keys.result("").encode()
        pattern, cursor = glob_escape(base.decode()) + "*", b""
        found: dict[str, list[tuple[float, str]]] = {}
        while cursor != b"0":
            cursor, names = await self._caller.command(
                "SCAN", cursor or b"0", "MATCH", pattern, "COUNT", PAGE
            )
            ids = list(dict.fromkeys(name[len(base) :] for name in names))
            for start in range(0, len(ids), RECORDS):
                for job_type, at, one in await self._completed(ids[start : start + RECORDS]):
                    found.setdefault(job_type, []).append((at, one))
        return {job_type: [one for _, one in sorted(ends)] for job_type, ends in found.items()}

    async def _completed(self, ids: Sequence[bytes]) -> list[tuple[str, float, str]]:
        kinds = await self.kinds(ids)
        commands: list[tuple[str, ...]] = []
        for one, kind in zip(ids, kinds, strict=True):
            name, job_type = text(one), kind.type if kind else ""
            commands += [
                ("GET", self._keys.status(name)),
                ("GET", self._keys.result(name)),
                ("ZSCORE", self._keys.ended("completed", job_type), name),
            ]
        answers = iter(await self._caller.pipeline(commands))
        return [
            (kind.type, float(records.ended_at(result)), text(one))
            for one, kind, status, result, noted in zip(ids, kinds, answers, answers, answers, strict=True)
            if kind and result and not noted and status in (b"completed", None)
        ]
