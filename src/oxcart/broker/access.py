"""Stores API keys and the audit log beside the queues, so that all servers of an API share them.

The keys of Redis have an empty queue name (``bull::ox:access``): no queue and no job can have them.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.broker.caller import Caller
from oxcart.broker.slots import has_tag, slot_of
from oxcart.model.access import AccessKey

if TYPE_CHECKING:
    from oxcart.broker.connection import Reconnect, Server

log = logging.getLogger("oxcart.broker")

#: Entries that the audit log keeps, about: those of known callers, and failed sign-ins.
AUDIT_ENTRIES, FAILED_ENTRIES = 100_000, 10_000
#: The caller of an entry that no key, session or proxy names: a failed sign-in.
UNKNOWN = "unknown"
#: Entries that one read of the audit log takes.
AUDIT_PAGE = 1000
#: The field of the hash that holds the secret of sessions; ids of keys are hexadecimal.
_SECRET = "session-secret"


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a caller did.

    Attributes:
        id: Its position in the log, which begins with the time in ms since 1970; empty in a new one.
        caller: The id of the key, the user that a proxy named, or ``local``.
        name: The name of the key.
        kind: How the caller was known: ``key``, ``session``, ``forward``, ``local`` or ``trusted``.
        address: Where the request came from.
        action: The method and the route, for example ``POST /api/v1/queues/{name}/pause``.
        queue: The queue that the route named.
        job_id: The job that the route named.
        status: The status of the answer.
        request_id: The id of the request, for the server's log.
        facts: More about it, for example how many jobs were changed.
    """

    id: str = ""
    caller: str
    name: str = ""
    kind: str
    address: str = ""
    action: str
    queue: str = ""
    job_id: str = ""
    status: int = 0
    request_id: str = ""
    facts: dict[str, Any] = {}

    @property
    def who(self) -> str:
        """The caller: the id of the key, the user that a proxy named, or ``local``."""
        return self.caller

    @property
    def at_ms(self) -> int:
        """When it was done, by the clock of the server with the log."""
        return int(self.id.partition("-")[0] or 0)


class AccessStore:
    """The API keys, the secret of sessions and the audit log of one prefix or namespace.

    Args:
        server: The server of the queues.
        prefix: Their prefix, or Bridge's namespace.
        reconnect: Pauses and limit of attempts to reach a lost server.
    """

    def __init__(self, server: Server, prefix: str, reconnect: Reconnect | None = None) -> None:
        tag = prefix if has_tag(prefix) or not server.is_cluster else f"{{{prefix}}}"
        self._keys = f"{tag}::ox:access"
        self._audit = f"{tag}::ox:audit"
        # Apart, so that nobody without a key can push the entries of known callers out.
        self._failed = f"{tag}::ox:audit:failed"
        slot = slot_of(self._keys) if server.is_cluster else None
        self._caller = Caller(server, slot, f"access-{secrets.token_hex(6)}", reconnect=reconnect)

    async def close(self) -> None:
        """Closes the connection."""
        await self._caller.close()

    async def now_ms(self) -> int:
        """Returns the server's time."""
        seconds, micros = await self._caller.command("TIME", timeout=10)
        return int(seconds) * 1000 + int(micros) // 1000

    # -- keys

    async def keys(self) -> list[AccessKey]:
        """Returns all keys, oldest first, revoked and expired ones included."""
        raw = await self._caller.command("HGETALL", self._keys, timeout=10)
        fields = zip(raw[::2], raw[1::2], strict=True)
        found = [_read(field, value) for field, value in fields if field != _SECRET.encode()]
        return sorted((key for key in found if key is not None), key=lambda key: (key.created_ms, key.id))

    async def get(self, key_id: str) -> AccessKey | None:
        """Returns a key by its id, or None."""
        if key_id == _SECRET:
            return None
        raw = await self._caller.command("HGET", self._keys, key_id, timeout=10)
        return None if raw is None else _read(key_id.encode(), raw)

    async def put(self, *keys: AccessKey) -> None:
        """Stores keys, all in one step."""
        fields = [part for key in keys for part in (key.id, msgspec.json.encode(key))]
        await self._caller.write("HSET", self._keys, *fields, timeout=10)

    async def forget(self, key_id: str) -> None:
        """Removes a key's record. Without any record an API serves its own machine without keys."""
        await self._caller.write("HDEL", self._keys, key_id, timeout=10)

    async def session_secret(self) -> bytes:
        """Returns the secret that signs sessions; the first caller makes it."""
        made = secrets.token_hex(32)
        await self._caller.write("HSETNX", self._keys, _SECRET, made, timeout=10)
        found: bytes = await self._caller.command("HGET", self._keys, _SECRET, timeout=10)
        return found

    async def renew_session_secret(self) -> None:
        """Replaces the secret that signs sessions: all of them end."""
        await self._caller.write("HSET", self._keys, _SECRET, secrets.token_hex(32), timeout=10)

    # -- audit

    async def record(self, entry: AuditEntry) -> None:
        """Appends to the audit log, which keeps about the latest 100 000 entries and 10 000 failed sign-ins.

        A lost answer may write an entry twice; they have the same request id.
        """
        failed = entry.caller == UNKNOWN and entry.kind == "key"
        key, most = (self._failed, FAILED_ENTRIES) if failed else (self._audit, AUDIT_ENTRIES)
        await self._caller.write(
            "XADD", key, "MAXLEN", "~", most, "*", "entry", msgspec.json.encode(entry), timeout=10
        )

    async def audit(self, before: str | None = None) -> AsyncIterator[AuditEntry]:
        """Yields entries of the audit log, newest first.

        Args:
            before: The id of an entry; only older ones are read.
        """
        streams = [self._entries(key, before) for key in (self._audit, self._failed)]
        heads = [await anext(stream, None) for stream in streams]
        while left := [(entry, number) for number, entry in enumerate(heads) if entry is not None]:
            entry, number = max(left, key=lambda one: _place(one[0]))
            yield entry
            heads[number] = await anext(streams[number], None)

    async def _entries(self, stream: str, before: str | None) -> AsyncIterator[AuditEntry]:
        end = "+" if before is None else f"({before}"
        while True:
            rows = await self._caller.command("XREVRANGE", stream, end, "-", "COUNT", AUDIT_PAGE, timeout=10)
            for row_id, fields in rows:
                end = f"({row_id.decode()}"
                try:
                    entry = msgspec.json.decode(fields[1], type=AuditEntry)
                except msgspec.MsgspecError:
                    continue  # of a later version
                yield msgspec.structs.replace(entry, id=row_id.decode())
            if len(rows) < AUDIT_PAGE:
                return


def _place(entry: AuditEntry) -> tuple[int, int]:
    ms, _, number = entry.id.partition("-")
    return int(ms), int(number or 0)


def _read(key_id: bytes, raw: bytes) -> AccessKey | None:
    try:
        return msgspec.json.decode(raw, type=AccessKey)
    except msgspec.MsgspecError:  # of a later version: its holder is refused, the others are not
        log.warning("cannot read API key %s", key_id.decode("utf-8", "replace"))
        return None
