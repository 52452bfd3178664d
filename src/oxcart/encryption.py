"""Encryption of stored values: ``Queue("emails", key_ring=KeyRing.from_env())``.

The documented path of `KeyRing`, which seals and opens payloads, checkpoints and results, and of `Bond`,
which says what a sealed value belongs to.
"""

from oxcart.broker.keyring import Bond, KeyRing

__all__ = ["Bond", "KeyRing"]
