"""Who may call which route: roles, tokens, and the guard of all routes.

Each role includes the ones before it: read, submit, operate, admin. Every route names the role that it needs
in its ``opt``; a route without one is open to all, as health checks are.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler

from oxcart.http.errors import ApiError
from oxcart.model.errors import ValidationError

#: The shortest token, in characters.
SHORTEST = 16

_HASHED = "sha256:"


class Role(IntEnum):
    """What a caller may do; a higher role includes the lower ones."""

    READ = 1
    SUBMIT = 2
    OPERATE = 3
    ADMIN = 4

    @classmethod
    def parse(cls, text: str) -> Role:
        """Reads the name of a role.

        Raises:
            ValidationError: There is no such role.
        """
        try:
            return cls[text.upper()]
        except KeyError:
            raise ValidationError("role", "one of read, submit, operate, admin", text) from None


#: The ``opt`` of a route that needs a role.
READ: dict[str, Any] = {"role": Role.READ}
SUBMIT: dict[str, Any] = {"role": Role.SUBMIT}
OPERATE: dict[str, Any] = {"role": Role.OPERATE}
ADMIN: dict[str, Any] = {"role": Role.ADMIN}
#: The ``opt`` of a route that is open to all.
OPEN: dict[str, Any] = {"role": None}


class Tokens:
    """The tokens of an API with their roles. Only their hashes are kept.

    Args:
        tokens: The role of each token. A token is at least 16 characters, or ``sha256:`` and the hash of one.
    """

    def __init__(self, tokens: Mapping[str, str] | None = None) -> None:
        self._hashes: list[tuple[bytes, Role]] = [
            (_hash(token), Role.parse(role)) for token, role in (tokens or {}).items()
        ]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def role_of(self, token: str) -> Role | None:
        """Returns the highest role of a token, or None. The time does not depend on the token."""
        given = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found: Role | None = None
        for known, role in self._hashes:
            if hmac.compare_digest(known, given) and (found is None or role > found):
                found = role
        return found


def parse_tokens(lines: Iterable[str], field: str = "token") -> dict[str, str]:
    """Reads tokens as ``ROLE:TOKEN``; empty lines and lines that begin with ``#`` are skipped.

    Raises:
        ValidationError: A line has another form. The message does not contain the token.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        role, separator, token = text.partition(":")
        if not separator:
            raise ValidationError(field, "ROLE:TOKEN", f"line {number}")
        _hash(token.strip())
        found[token.strip()] = Role.parse(role.strip()).name.lower()
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


def _hash(token: str) -> bytes:
    if token.startswith(_HASHED):
        try:
            digest = bytes.fromhex(token[len(_HASHED) :])
        except ValueError:
            digest = b""
        if len(digest) != hashlib.sha256().digest_size:
            raise ValidationError("token", "sha256: and 64 hexadecimal digits", "another text")
        return digest
    if len(token) < SHORTEST:
        raise ValidationError("token", f"at least {SHORTEST} characters", f"{len(token)} characters")
    return hashlib.sha256(token.encode()).digest()


class Guard:
    """Checks every request before its route runs.

    Args:
        tokens: The tokens. Without any, only callers on this machine are let in, as admins.
        trusted: Whether all callers are let in without a token, because something in front checks them.
    """

    def __init__(self, tokens: Tokens, *, trusted: bool = False) -> None:
        self._tokens = tokens
        self._trusted = trusted

    def __call__(self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        """Lets a request through, or raises.

        Raises:
            ApiError: 401 without a known token, 403 without the role.
        """
        # A route that names no role at all is closed, so that a forgotten one is not open.
        needed: Role | None = handler.opt.get("role", Role.ADMIN)
        if needed is None:
            return
        role = self._role(connection)
        if role < needed:
            message = f"this needs the role {needed.name.lower()}; the token has {role.name.lower()}"
            raise ApiError(403, "forbidden", message)

    def _role(self, connection: ASGIConnection[Any, Any, Any, Any]) -> Role:
        if self._tokens:
            role = self._tokens.role_of(_token(connection))
            if role is None:
                raise ApiError(401, "unauthorized", "pass a token: Authorization: Bearer … or X-API-Key: …")
            return role
        if not self._trusted:
            _check_local(connection)
        return Role.ADMIN


def _token(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    kind, _, value = connection.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    return connection.headers.get("x-api-key", "")


def _check_local(connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    """Refuses callers of other machines, and pages of other sites in a local browser.

    A page can send simple requests to any address, and can make a name of its own lead to this machine; the
    first have a foreign ``Origin``, the second a foreign ``Host``.
    """
    client = connection.client
    if client is None or not is_loopback(client.host):
        raise ApiError(403, "forbidden", "without tokens only this machine is served")
    host = urlsplit(f"//{connection.headers.get('host', '')}").hostname or ""
    if not is_loopback(host):
        raise ApiError(403, "forbidden", "without tokens only requests to localhost are served")
    origin = connection.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != connection.headers.get("host"):
        raise ApiError(403, "forbidden", "requests of other sites are not served")


def is_loopback(host: str) -> bool:
    """Returns whether a host name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
