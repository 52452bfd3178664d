"""Who may do what over HTTP: roles, grants for queues, and API keys of which only a hash is kept.

A key is 256 random bits, so nobody can guess it from its hash: one SHA-256 suffices. A slow hash protects
passwords, which people choose; here it would only cost time on every request.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from enum import IntEnum
from fnmatch import fnmatchcase

import msgspec

from oxcart.model.errors import ValidationError

#: What every key begins with, so that scanners of source code can find one.
KEY_MARK = "oxc"
#: Random bytes of a key's secret, and of its public id.
SECRET_BYTES, ID_BYTES = 32, 6
#: Characters of a key's name at most.
MAX_NAME = 100

_KEY = re.compile(rf"{KEY_MARK}_([0-9a-f]{{{2 * ID_BYTES}}})_[A-Za-z0-9_-]{{43}}")


class Role(IntEnum):
    """What a caller may do; a higher role includes the lower ones."""

    OBSERVER = 1
    SUBMITTER = 2
    OPERATOR = 3
    ADMIN = 4

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def parse(cls, text: str) -> Role:
        """Reads the name of a role.

        Raises:
            ValidationError: There is no such role.
        """
        try:
            return cls[text.upper()]
        except KeyError:
            raise ValidationError("role", "one of observer, submitter, operator, admin", text) from None


class Grant(msgspec.Struct, frozen=True):
    """A role on the queues that a pattern matches.

    Attributes:
        role: The role.
        queues: A pattern with ``*`` and ``?`` for the queue's name. If it contains ``:``, it is compared with
            ``prefix:name``, or with ``namespace:name`` of Bridge.
    """

    role: Role
    queues: str = "*"

    def __str__(self) -> str:
        return str(self.role) if self.queues == "*" else f"{self.role}@{self.queues}"

    @classmethod
    def parse(cls, text: str) -> Grant:
        """Reads ``ROLE`` or ``ROLE@PATTERN``.

        Raises:
            ValidationError: The text has another form.
        """
        role, separator, pattern = text.partition("@")
        if separator and not pattern:
            raise ValidationError("grant", "ROLE or ROLE@PATTERN, such as operator@emails*", text)
        return cls(Role.parse(role.strip()), pattern.strip() or "*")

    def covers(self, prefix: str, name: str) -> bool:
        """Returns whether the grant is for a queue.

        Example:
            >>> Grant.parse("operator@emails*").covers("bull", "emails-fast")
            True
        """
        return fnmatchcase(f"{prefix}:{name}" if ":" in self.queues else name, self.queues)


def parse_grants(texts: Iterable[str]) -> tuple[Grant, ...]:
    """Reads grants, each ``ROLE`` or ``ROLE@PATTERN``.

    Raises:
        ValidationError: There is none, or one has another form.
    """
    found = tuple(dict.fromkeys(Grant.parse(text) for text in texts))
    if not found:
        raise ValidationError("grants", "at least one ROLE or ROLE@PATTERN", [])
    return found


class AccessKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An API key as it is stored.

    Attributes:
        id: Its public part, which names it in lists and in the audit log.
        name: Who uses it, in words.
        hash: SHA-256 of the whole key, in hexadecimal digits.
        grants: Its grants, as text.
        payloads: Whether it may read payloads and results that its role hides.
        created_ms: When it was made.
        created_by: Who made it.
        expires_ms: When it stops working; None for never.
        revoked_ms: When it was revoked; None if it was not.
        replaces: The id of the key that it was made for by a rotation.
    """

    id: str
    name: str
    hash: str
    grants: tuple[str, ...]
    payloads: bool = False
    created_ms: int
    created_by: str = ""
    expires_ms: int | None = None
    revoked_ms: int | None = None
    replaces: str | None = None

    def state(self, now_ms: int) -> str:
        """Returns ``active``, ``expired`` or ``revoked``."""
        if self.revoked_ms is not None:
            return "revoked"
        return "active" if self.expires_ms is None or now_ms < self.expires_ms else "expired"

    def matches(self, text: str) -> bool:
        """Returns whether a text is this key; the time does not depend on where they differ."""
        return hmac.compare_digest(bytes.fromhex(self.hash), digest(text))


def digest(text: str) -> bytes:
    """Returns the hash under which a key is kept."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def key_text(key_id: bytes, secret: bytes) -> tuple[str, str]:
    """Returns the id and the whole text of a new key made of random bytes.

    Raises:
        ValidationError: The bytes are too few.
    """
    import base64

    if len(key_id) != ID_BYTES or len(secret) != SECRET_BYTES:
        raise ValidationError("secret", f"{SECRET_BYTES} random bytes", f"{len(secret)} bytes")
    made = base64.urlsafe_b64encode(secret).decode().rstrip("=")
    return key_id.hex(), f"{KEY_MARK}_{key_id.hex()}_{made}"


def id_of_key(text: str) -> str | None:
    """Returns the public id within the text of a key, or None if it is none."""
    found = _KEY.fullmatch(text)
    return None if found is None else found[1]


def check_key_name(name: str) -> str:
    """Returns the name of a key.

    Raises:
        ValidationError: It is empty, too long, or has control characters.
    """
    if not (name.strip() and len(name) <= MAX_NAME and name.isprintable()):
        raise ValidationError("name", f"1 to {MAX_NAME} printable characters", name)
    return name
