"""Spoils keys as a hostile or broken peer would: other types, truncated and random values, missing keys."""

from __future__ import annotations

import random
from typing import Any

#: Values that a field, a member or a whole key may get.
ODD = (
    *(b"", b"0", b"-1", b"nan", b"inf", b"1e400", b"9" * 30, b"9" * 400, b"x", b"\x00", b"\xff\xfe"),
    *(b"null", b"{}", b"[]", b'{"attempts":', b'"\\ud83d"', b'{"count":-1}', b"a:b:c", b"\x01lane\x01id"),
    b"[" * 1100 + b"]" * 1100,
)


def odd(dice: random.Random) -> bytes:
    """Returns a value that nobody expects."""
    return dice.randbytes(dice.randrange(20)) if dice.random() < 0.2 else dice.choice(ODD)


class Hostile:
    """Spoils keys of a server.

    Args:
        client: A client that does not decode.
        dice: Randomness.
    """

    def __init__(self, client: Any, dice: random.Random) -> None:
        self._client = client
        self._dice = dice

    def spoil(self) -> str:
        """Spoils one key; returns what it did."""
        keys = sorted(self._client.keys("*"))
        if not keys:
            return "no keys"
        key = self._dice.choice(keys)
        ways = [self._remove, self._mistype, self._change, self._change, self._change, self._change]
        way = self._dice.choice(ways)
        way(key)
        return f"{way.__name__.strip('_')} {key!r}"

    def _remove(self, key: bytes) -> None:
        self._client.delete(key)

    def _mistype(self, key: bytes) -> None:
        old = self._client.type(key)
        self._client.delete(key)
        new = self._dice.choice(
            [kind for kind in (b"string", b"list", b"set", b"zset", b"hash") if kind != old]
        )
        value = odd(self._dice)
        match new:
            case b"string":
                self._client.set(key, value)
            case b"list":
                self._client.rpush(key, value)
            case b"set":
                self._client.sadd(key, value)
            case b"zset":
                self._client.zadd(key, {value: 1})
            case _:
                self._client.hset(key, value, value)

    def _change(self, key: bytes) -> None:
        value, dice, client = odd(self._dice), self._dice, self._client
        match client.type(key):
            case b"string":
                old = client.get(key) or b""  # it may have expired meanwhile
                client.set(key, old[: len(old) // 2] if dice.random() < 0.3 else value)
            case b"hash":
                field = dice.choice(sorted(client.hkeys(key)))
                old = client.hget(key, field) or b""
                if dice.random() < 0.2:
                    client.hdel(key, field)
                else:
                    client.hset(key, field, old[: len(old) // 2] if dice.random() < 0.3 else value)
            case b"list":
                client.lset(key, dice.randrange(client.llen(key)), value)
            case b"set":
                client.sadd(key, value)
            case b"zset":
                client.zadd(key, {value: dice.choice([0, -1, 1e300, float("inf"), float("-inf")])})
            case _:
                client.xadd(key, {value or b"event": value})
