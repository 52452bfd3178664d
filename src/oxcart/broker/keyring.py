"""The keys that seal a queue's values: AES-256-GCM, with several keys while one is replaced.

A sealed value is a JSON object that every peer can carry and none can read. Its envelope is versioned:
``{"$sealed": {"v": 2, "for": "payload", "key": "<id>", "check": "<hex>", "nonce": "<base64>", "data":
"<base64>"}}``. Its context (``Bond``) is authenticated with it: a value of another job, queue,
prefix or purpose does not open. ``check`` is derived from the key, and distinguishes another key of the same
id from an altered value.

Version 1 bound the queue's name alone; only a ring with ``migrating=True`` opens it.

To change the key, pass the ring both keys and make the new one the current one. New values are sealed with
it, and old ones still open. ``oxcart keys rotate`` re-seals stored values; then drop the old key.

Needs the package ``cryptography`` (``pip install 'oxcart[encryption]'``).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from oxcart.model.errors import DecryptionError, MissingExtra, SealError, ValidationError

__all__ = ["SEALED", "Bond", "DecryptionError", "KeyRing", "Purpose", "SealError"]

#: How a sealed value begins on the wire.
SEALED = b'{"$sealed":'

#: The kinds of sealed values; ``schedule`` is the payload that all runs of a schedule share.
Purpose = Literal["payload", "checkpoint", "result", "progress", "schedule", "step", "signal"]

VERSION, _FIRST_VERSION = 2, 1
_KEY_BYTES, _NONCE_BYTES = 32, 12
_MAX_ID = 64
_json = msgspec.json.Encoder()


class Bond(msgspec.Struct, frozen=True):
    """The context that a sealed value is bound to.

    Attributes:
        protocol: ``bullmq`` or ``bridge``.
        prefix: The queue's prefix, or its namespace.
        queue: The queue; for a lane its base queue.
        job_id: The job, or for the purpose ``schedule`` the schedule.
        purpose: The kind of the value.
        part: The name of the step or signal within the job; empty for other kinds.
    """

    protocol: str
    prefix: str
    queue: str
    job_id: str
    purpose: Purpose
    part: str = ""

    def authenticated(self) -> bytes:
        """The associated data; each part carries its length, so that no two bonds read the same."""
        parts = [self.protocol, self.prefix, self.queue, self.job_id, self.purpose]
        if self.part:
            parts.append(self.part)
        encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
        return b"oxcart:2" + b"".join(b":%d:%b" % (len(part), part) for part in encoded)


class _Letter(msgspec.Struct):
    v: int
    key: str
    nonce: str
    data: str
    purpose: str = msgspec.field(default="", name="for")
    check: str = ""


class _Envelope(msgspec.Struct, rename={"sealed": "$sealed"}):
    sealed: _Letter


_envelope = msgspec.json.Decoder(_Envelope)


class KeyRing:
    """The keys of a queue's values, and the kinds of values they seal.

    Payloads, checkpoints, steps and signals are always sealed. A plaintext value in the place of a sealed one
    is refused.

    Args:
        keys: Keys by their ids; a key is 32 bytes, or their base64.
        current: The id of the key that seals; optional if there is only one.
        results: Whether results are sealed too.
        progress: Whether progress is sealed too.
        migrating: Whether to read plaintext and version 1 as well, while a queue is moved to this version.
            As long as it is set, nothing protects the queue from values in plaintext.
        nonce: Makes the nonce of a value; passed in so that tests can set it.

    Raises:
        ValidationError: A key or an id is malformed.
        MissingExtra: The package ``cryptography`` is not installed.

    Example:
        >>> ring = KeyRing({"2026": KeyRing.generate()})
    """

    def __init__(
        self,
        keys: Mapping[str, bytes | str],
        current: str | None = None,
        *,
        results: bool = False,
        progress: bool = False,
        migrating: bool = False,
        nonce: Callable[[int], bytes] = os.urandom,
    ) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise MissingExtra("encryption of payloads", "encryption") from error
        if not isinstance(keys, Mapping) or not keys:
            raise ValidationError("keys", "a mapping with at least one key", type(keys).__name__)
        if current is None:
            if len(keys) > 1:
                raise ValidationError(
                    "current", "the id of the key that seals, as there are several", current
                )
            current = next(iter(keys))
        if current not in keys:
            raise ValidationError("current", f"one of {', '.join(map(str, keys))}", current)
        self._ciphers: dict[str, Any] = {}
        self._checks: dict[str, str] = {}
        for key_id, key in keys.items():
            if not isinstance(key_id, str) or not 1 <= len(key_id) <= _MAX_ID or not key_id.isprintable():
                raise ValidationError("key id", f"text of 1 to {_MAX_ID} printable characters", key_id)
            raw = _read_key(key, key_id)
            self._ciphers[key_id] = AESGCM(raw)
            self._checks[key_id] = hmac.new(raw, b"oxcart:key-check", hashlib.sha256).hexdigest()[:16]
        self.current = current
        self.migrating = migrating
        self.required: frozenset[str] = frozenset(
            ("payload", "checkpoint", "schedule", "step", "signal")
            + (("result",) if results else ())
            + (("progress",) if progress else ())
        )
        self._nonce = nonce

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._ciphers)}; current {self.current})"

    @classmethod
    def from_env(
        cls,
        variable: str = "OXCART_KEYS",
        *,
        results: bool = False,
        progress: bool = False,
        migrating: bool = False,
    ) -> KeyRing | None:
        """Reads keys from an environment variable, ``id:base64`` with commas between; the first one seals.

        Returns:
            None if the variable is not set.
        """
        text = os.environ.get(variable, "").strip()
        if not text:
            return None
        keys: dict[str, bytes | str] = {}
        for pair in text.split(","):
            key_id, colon, key = pair.strip().partition(":")
            if not colon:
                raise ValidationError(variable, "id:key pairs with commas between", "a pair without a colon")
            keys[key_id] = key
        return cls(keys, next(iter(keys)), results=results, progress=progress, migrating=migrating)

    @staticmethod
    def generate() -> str:
        """Returns a new key, as base64."""
        return base64.b64encode(os.urandom(_KEY_BYTES)).decode()

    def seal(self, body: bytes, bond: Bond) -> bytes:
        """Seals JSON under the current key; returns the envelope as JSON."""
        nonce = self._nonce(_NONCE_BYTES)
        sealed = self._ciphers[self.current].encrypt(nonce, body, bond.authenticated())
        letter = {
            "v": VERSION,
            "for": bond.purpose,
            "key": self.current,
            "check": self._checks[self.current],
            "nonce": base64.b64encode(nonce).decode(),
            "data": base64.b64encode(sealed).decode(),
        }
        return _json.encode({"$sealed": letter})

    def open(self, raw: bytes, bond: Bond) -> bytes:
        """Returns the JSON in an envelope.

        Raises:
            SealError: It was altered, or sealed for something else.
            DecryptionError: The ring lacks its key, or does not read its version.
        """
        letter = _read(raw)
        if letter.v != VERSION and not (letter.v == _FIRST_VERSION and self.migrating):
            raise DecryptionError(_of_version(letter.v), letter.key)
        cipher = self._ciphers.get(letter.key)
        if cipher is None:
            known = ", ".join(self._ciphers)
            raise DecryptionError(
                f"the {bond.purpose} is sealed with key {letter.key!r}; this queue has {known}", letter.key
            )
        if letter.v == _FIRST_VERSION:
            return _decrypt(cipher, letter, b"oxcart:1:" + bond.queue.encode(), bond)
        if letter.check != self._checks[letter.key]:
            raise DecryptionError(
                f"the {bond.purpose} does not open with key {letter.key!r}: another key of this id sealed it",
                letter.key,
            )
        if letter.purpose != bond.purpose:
            raise SealError(
                f"the {bond.purpose} of job {bond.job_id} was sealed as a {letter.purpose[:20] or 'nothing'}",
                letter.key,
            )
        return _decrypt(cipher, letter, bond.authenticated(), bond)

    @property
    def fingerprint(self) -> tuple[str, str]:
        """The id of the key that seals and a check of it, which tell rings apart without their keys."""
        return self.current, self._checks[self.current]

    def is_current(self, raw: bytes) -> bool:
        """Returns whether an envelope is of this version and sealed with the current key."""
        letter = _read(raw)
        return (letter.v, letter.key, letter.check) == (VERSION, self.current, self._checks[self.current])


def purpose_of(raw: bytes) -> str:
    """Returns the purpose that an envelope names; empty if it names none."""
    return _read(raw).purpose


def sealed_as(raw: bytes) -> str:
    """Returns the same, and empty text for an unreadable envelope."""
    try:
        return purpose_of(raw)
    except DecryptionError:
        return ""


def _decrypt(cipher: Any, letter: _Letter, about: bytes, bond: Bond) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        nonce = base64.b64decode(letter.nonce, validate=True)
        opened: bytes = cipher.decrypt(nonce, base64.b64decode(letter.data, validate=True), about)
    except (InvalidTag, ValueError) as error:
        raise SealError(
            f"the {bond.purpose} of job {bond.job_id} was altered, or sealed for another job or queue",
            letter.key,
        ) from error
    return opened


def _of_version(version: int) -> str:
    if version == _FIRST_VERSION:
        return (
            "the value is sealed in version 1, which does not name its job: "
            "read it with KeyRing(…, migrating=True), and re-seal it with `oxcart keys rotate`"
        )
    return f"the value is sealed in version {version}, which this version of Oxcart does not know"


def _read(raw: bytes) -> _Letter:
    try:
        return _envelope.decode(raw).sealed
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SealError("the value begins like an envelope of Oxcart, and is none") from error


def _read_key(key: bytes | str, key_id: str) -> bytes:
    bound = f"{_KEY_BYTES} bytes, or their base64"
    if isinstance(key, str):
        try:
            key = base64.b64decode(key.strip(), validate=True)
        except (binascii.Error, ValueError):
            raise ValidationError(f"key {key_id!r}", bound, "other text") from None
    if not isinstance(key, bytes) or len(key) != _KEY_BYTES:
        length = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise ValidationError(f"key {key_id!r}", bound, length)
    return key
