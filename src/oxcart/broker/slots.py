"""Hash tags and cluster slots of keys, the same for both protocols."""

from __future__ import annotations

import binascii


def has_tag(text: str) -> bool:
    """Returns whether a key with this text in it has a hash tag: a brace pair with something inside."""
    opened = text.find("{")
    return opened >= 0 and text.find("}", opened + 1) > opened + 1


def slot_of(key: str) -> int:
    """Returns the cluster slot of a key: a checksum of its hash tag, or of the whole key without one."""
    if has_tag(key):
        opened = key.find("{") + 1
        key = key[opened : key.find("}", opened)]
    return binascii.crc_hqx(key.encode(), 0) % 16384
