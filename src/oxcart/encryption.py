"""Encryption of stored values: ``Queue("emails", key_ring=KeyRing.from_env())``.

The documented path of `KeyRing`, which seals and opens payloads, checkpoints and results, and of `Bond`,
the context that a sealed value is bound to.
"""

from oxcart.broker.keyring import Bond, KeyRing

__all__ = ["Bond", "KeyRing"]
