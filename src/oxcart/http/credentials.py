"""Who calls: the caller of a request, and the keys and tokens by which the API knows one."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from litestar.connection import ASGIConnection

from oxcart.broker.access import AccessStore
from oxcart.model.access import AccessKey, Grant, Role, digest, id_of_key, parse_grants
from oxcart.model.errors import BrokerError, ValidationError

log = logging.getLogger("oxcart.http")

#: The shortest token, in characters.
SHORTEST = 16
#: Seconds for which the stored keys are remembered. With the second between two checks of an open stream, a
#: revocation takes effect within 5 s.
FRESH = 3.0

_HASHED = "sha256:"

Connection = ASGIConnection[Any, Any, Any, Any]


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who sent a request.

    Attributes:
        id: The id of the key, the user that a proxy named, or ``local``.
        name: The name of the key, for people.
        kind: How the caller is known.
        grants: What the caller may do.
        payloads: Whether the caller may read payloads and results that the role hides.
        csrf: The token that every unsafe request must carry; None if no page of another site can send
            requests in the caller's name.
    """

    id: str
    name: str = ""
    kind: Literal["key", "session", "forward", "local", "trusted"]
    grants: tuple[Grant, ...]
    payloads: bool = False
    csrf: str | None = None

    @property
    def role(self) -> Role:
        """The highest role on any queue."""
        return max(grant.role for grant in self.grants)

    def has(self, needed: Role, prefix: str, queue: str) -> bool:
        """Returns whether the caller has at least a role on a queue."""
        return any(grant.role >= needed and grant.covers(prefix, queue) for grant in self.grants)

    def has_everywhere(self, needed: Role) -> bool:
        """Returns whether the caller has at least a role on all queues."""
        return any(grant.role >= needed and grant.queues == "*" for grant in self.grants)

    def may_read_payloads(self, prefix: str, queue: str) -> bool:
        """Returns whether the caller may read payloads of a queue's jobs."""
        return self.payloads or self.has(Role.OPERATOR, prefix, queue)

    def may_read_results(self, prefix: str, queue: str) -> bool:
        """Returns whether the caller may read results of a queue's jobs."""
        return self.payloads or self.has(Role.SUBMITTER, prefix, queue)


def caller_of(connection: Connection) -> Caller | None:
    """Returns who sent a request; None on a route that is open to all."""
    found: Caller | None = connection.scope.get("oxcart.caller")  # type: ignore[assignment]
    return found


class Credentials:
    """The tokens that the API was started with, and the keys in the store.

    Args:
        tokens: The grants of each token, as text: ``operator@emails*``, several separated by commas. A token
            is at least 16 characters, or ``sha256:`` and the hash of one. Only hashes are kept.
        store: The stored keys, or None.
        clock: Returns ms since 1970.
    """

    def __init__(
        self,
        tokens: Mapping[str, str] | None = None,
        store: AccessStore | None = None,
        clock: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        self._store = store
        self._clock = clock
        self._tokens: list[tuple[bytes, Caller]] = []
        for token, text in (tokens or {}).items():
            hashed = hash_of(token)
            grants = parse_grants(part.strip() for part in text.split(","))
            caller = Caller(id=f"token-{hashed.hex()[:12]}", name="token", kind="key", grants=grants)
            self._tokens.append((hashed, caller))
        self._keys: dict[str, AccessKey] = {}
        self._read_at: float | None = None

    async def are_required(self) -> bool:
        """Returns whether callers need a key or token: there is one, even if it has expired."""
        if self._tokens:
            return True
        return bool(await self._stored())

    async def find(self, text: str) -> Caller | None:
        """Returns the caller with a key or token; the time does not depend on where the text differs."""
        given, found = digest(text), None
        for known, caller in self._tokens:
            if hmac.compare_digest(known, given):
                found = caller
        if found is not None:
            return found
        key = await self._key(id_of_key(text))
        return self._caller(key) if key is not None and key.matches(text) else None

    async def named(self, caller_id: str) -> Caller | None:
        """Returns the caller with the id of a key or token that works now."""
        for _, caller in self._tokens:
            if caller.id == caller_id:
                return caller
        key = await self._key(caller_id)
        return None if key is None else self._caller(key)

    def _caller(self, key: AccessKey) -> Caller | None:
        if key.state(int(self._clock())) != "active":
            return None
        return Caller(
            id=key.id, name=key.name, kind="key", grants=parse_grants(key.grants), payloads=key.payloads
        )

    async def _key(self, key_id: str | None) -> AccessKey | None:
        if key_id is None:
            return None
        found = (await self._stored()).get(key_id)
        if found is None and self._store is not None:
            found = await self._store.get(key_id)  # perhaps made a moment ago
            if found is not None:
                self._keys[key_id] = found
        return found

    async def _stored(self) -> dict[str, AccessKey]:
        if self._store is None:
            return {}
        if self._read_at is None or time.monotonic() - self._read_at > FRESH:
            is_first = self._read_at is None
            if not is_first:
                self._read_at = time.monotonic()  # other requests use the known keys meanwhile
            try:
                self._keys = {key.id: key for key in await self._store.keys()}
            except BrokerError as error:
                if is_first:
                    raise  # nobody is let in before the keys are known
                log.warning("cannot read the API keys, using those read before: %s", error)
            self._read_at = time.monotonic()
        return self._keys


def parse_tokens(lines: Iterable[str], field: str = "token") -> dict[str, str]:
    """Reads tokens as ``ROLE:TOKEN`` or ``ROLE@PATTERN:TOKEN``.

    Empty lines and lines that begin with ``#`` are skipped.

    Raises:
        ValidationError: A line has another form. The message does not contain the token.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        grant, separator, token = text.partition(":")
        if not separator:
            raise ValidationError(field, "ROLE:TOKEN or ROLE@PATTERN:TOKEN", f"line {number}")
        hash_of(token.strip())
        found[token.strip()] = str(Grant.parse(grant.strip()))
    return found


def read_tokens(path: Path) -> dict[str, str]:
    """Reads a file of tokens, one ``ROLE:TOKEN`` per line.

    Raises:
        ValidationError: The file cannot be read, or a line has another form.
    """
    try:
        return parse_tokens(path.read_text("utf-8").splitlines(), "token file")
    except (OSError, UnicodeDecodeError) as error:
        raise ValidationError("token file", "a readable text file", str(path)) from error


def hash_of(token: str) -> bytes:
    """Returns the hash of a token, which may be written as ``sha256:`` and the hash itself.

    Raises:
        ValidationError: The token is too short, or its hash has another length.
    """
    if token.startswith(_HASHED):
        try:
            given = bytes.fromhex(token[len(_HASHED) :])
        except ValueError:
            given = b""
        if len(given) != len(digest("")):
            raise ValidationError("token", "sha256: and 64 hexadecimal digits", "another text")
        return given
    if len(token) < SHORTEST:
        raise ValidationError("token", f"at least {SHORTEST} characters", f"{len(token)} characters")
    return digest(token)
