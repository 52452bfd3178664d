"""Payloads that only those who have the key can read: AES-256-GCM, with several keys while one is replaced.

A sealed payload is a JSON object that every peer can carry and none can read:
``{"$sealed": {"v": 1, "key": "<id>", "nonce": "<base64>", "data": "<base64>"}}``. The queue's name is bound
to it, so what was sealed for one queue does not open in another.

To change the key, give the ring the new one beside the old one and make it the current one: new jobs are
sealed with it, old ones still open. When no job of the old key is left, drop that key.

Needs the package ``cryptography`` (``pip install 'oxcart[encryption]'``).
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from oxcart.model import payload
from oxcart.model.errors import MissingExtra, OxcartError, ValidationError

#: How a sealed payload begins on the wire.
SEALED = b'{"$sealed":'

_KEY_BYTES, _NONCE_BYTES = 32, 12
_VERSION = 1
_MAX_ID = 64


class DecryptionError(OxcartError):
    """A payload is sealed and cannot be opened here: the key is missing or wrong, or the payload was altered.

    Attributes:
        reason: What is wrong, without anything of the payload.
        key_id: The key that it was sealed with, where that could be read.
    """

    def __init__(self, reason: str, key_id: str | None = None) -> None:
        super().__init__(reason, key_id)
        self.reason = reason
        self.key_id = key_id

    def __str__(self) -> str:
        return self.reason


class _Letter(msgspec.Struct):
    v: int
    key: str
    nonce: str
    data: str


class _Envelope(msgspec.Struct, rename={"sealed": "$sealed"}):
    sealed: _Letter


class KeyRing:
    """The keys of a queue's payloads.

    Args:
        keys: Keys by their ids; a key is 32 bytes, or their base64.
        current: The id of the key that seals; may be left out where there is one.
        nonce: Makes the nonce of a payload; passed in so that tests can rule it.

    Raises:
        ValidationError: A key or an id is not what it must be.
        MissingExtra: The package ``cryptography`` is not installed.

    Example:
        >>> ring = KeyRing({"2026": KeyRing.generate()})
    """

    def __init__(
        self,
        keys: Mapping[str, bytes | str],
        current: str | None = None,
        *,
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
        for key_id, key in keys.items():
            if not isinstance(key_id, str) or not 1 <= len(key_id) <= _MAX_ID or not key_id.isprintable():
                raise ValidationError("key id", f"text of 1 to {_MAX_ID} printable characters", key_id)
            self._ciphers[key_id] = AESGCM(_read_key(key, key_id))
        self.current = current
        self._nonce = nonce

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._ciphers)}; current {self.current})"

    @classmethod
    def from_env(cls, variable: str = "OXCART_KEYS") -> KeyRing | None:
        """The keys in an environment variable, ``id:base64`` with commas between; the first one seals.

        Returns:
            None where the variable is not set.
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
        return cls(keys, next(iter(keys)))

    @staticmethod
    def generate() -> str:
        """A new key, as base64."""
        return base64.b64encode(os.urandom(_KEY_BYTES)).decode()

    def seal(self, data: Any, queue: str) -> dict[str, Any]:
        """A payload that only this ring opens.

        Raises:
            PayloadError: The data cannot travel as JSON.
        """
        nonce = self._nonce(_NONCE_BYTES)
        body = self._ciphers[self.current].encrypt(nonce, payload.encode(data), _about(queue))
        letter = {
            "v": _VERSION,
            "key": self.current,
            "nonce": base64.b64encode(nonce).decode(),
            "data": base64.b64encode(body).decode(),
        }
        return {"$sealed": letter}

    def open(self, raw: bytes, queue: str) -> bytes:
        """What is in a sealed payload, as JSON.

        Raises:
            DecryptionError: It cannot be opened.
        """
        from cryptography.exceptions import InvalidTag

        letter = _read(raw)
        cipher = self._ciphers.get(letter.key)
        if cipher is None:
            known = ", ".join(self._ciphers)
            told = f"the payload is sealed with key {letter.key!r}; this queue has {known}"
            raise DecryptionError(told, letter.key)
        try:
            nonce = base64.b64decode(letter.nonce, validate=True)
            opened: bytes = cipher.decrypt(nonce, base64.b64decode(letter.data, validate=True), _about(queue))
        except (InvalidTag, ValueError) as error:
            told = f"the payload does not open with key {letter.key!r}: it is another key, or it was altered"
            raise DecryptionError(told, letter.key) from error
        return opened


def open_sealed(raw: bytes, ring: KeyRing | None, queue: str) -> bytes:
    """A payload as JSON, opened where it is sealed.

    Raises:
        DecryptionError: It is sealed and cannot be opened.
    """
    if not raw.startswith(SEALED):
        return raw
    if ring is None:
        raise DecryptionError("the payload is sealed, and this queue was given no keys: Queue(…, key_ring=…)")
    return ring.open(raw, queue)


def _about(queue: str) -> bytes:
    return b"oxcart:1:" + queue.encode()


def _read(raw: bytes) -> _Letter:
    try:
        letter = msgspec.json.decode(raw, type=_Envelope).sealed
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DecryptionError("the payload looks sealed, but is no envelope of ours") from error
    if letter.v != _VERSION:
        raise DecryptionError(f"the payload is sealed in version {letter.v}, of which nothing is known here")
    return letter


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
