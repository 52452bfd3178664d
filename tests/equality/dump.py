"""The content of a database in a form that can be compared.

A dump holds every key with its type, its value and whether it expires. It leaves out what cannot be equal:
ids of stream entries, and the order of set members and hash fields. JSON is compared as JSON.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import redis

# One reply for the whole database: [key, type, pttl, value] for each key. Stream entries lose their ids here.
_DUMP = """
local reply = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local value
  if kind == 'string' then
    value = redis.call('GET', key)
  elseif kind == 'list' then
    value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'hash' then
    value = redis.call('HGETALL', key)
  elseif kind == 'set' then
    value = redis.call('SMEMBERS', key)
  elseif kind == 'zset' then
    value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'stream' then
    value = {}
    for i, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
      value[i] = entry[2]
    end
  end
  reply[#reply + 1] = {key, kind, redis.call('PTTL', key), value}
end
return reply
"""

_JSON_FIELDS = frozenset({"opts", "data", "parent", "stacktrace", "returnvalue", "progress"})
# Event fields that readers parse as JSON.
_JSON_EVENT_FIELDS = frozenset({"data", "returnvalue"})
# Two servers set an expiry at two moments, so differences of milliseconds do not count.
TTL_TOLERANCE_MS = 5_000

Value: TypeAlias = str | list[Any] | dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One key: its Redis type, milliseconds to live (None without an expiry) and its value.

    Lists are in order, sets sorted, hashes dicts of text, sorted sets lists of [member, score as text],
    streams lists of flat field lists.
    """

    kind: str
    ttl: int | None
    value: Value


Dump: TypeAlias = dict[str, Entry]


@dataclass(frozen=True, slots=True)
class Allowed:
    """A deliberate difference with its reason; docs/protocol lists the same."""

    reason: str
    key: Callable[[str], bool]
    field: str | None = None


# Differences that are allowed besides our own `ox:` keys and fields.
ALLOWED: tuple[Allowed, ...] = ()


def take_dump(client: redis.Redis) -> Dump:
    """Read everything in the client's database. The client must not decode replies."""
    reply: list[tuple[bytes, bytes, int, Any]] = client.eval(_DUMP, 0)
    return {_text(key): _entry(_text(kind), ttl, value) for key, kind, ttl, value in reply}


def _entry(kind: str, ttl: int, raw: Any) -> Entry:
    value: Value
    match kind:
        case "string":
            value = _text(raw)
        case "list":
            value = [_text(item) for item in raw]
        case "set":
            value = sorted(_text(item) for item in raw)
        case "hash":
            flat = [_text(item) for item in raw]
            value = dict(zip(flat[::2], flat[1::2], strict=True))
        case "zset":
            flat = [_text(item) for item in raw]
            value = [list(pair) for pair in zip(flat[::2], flat[1::2], strict=True)]
        case "stream":
            value = [[_text(item) for item in entry] for entry in raw]
        case _:
            raise AssertionError(f"a key of type {kind}")
    return Entry(kind, ttl if ttl >= 0 else None, value)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def difference(left: Dump, right: Dump, names: tuple[str, str] = ("node", "oxcart")) -> list[str]:
    """Return what differs, a line or more for each key; empty if the databases are equal."""
    lines: list[str] = []
    for key in sorted(left.keys() | right.keys()):
        if is_ours(key) or _is_allowed(key, None):
            continue
        one, other = left.get(key), right.get(key)
        if one == other:
            continue
        one, other = one and _comparable(key, one), other and _comparable(key, other)
        if one == other:
            continue
        if one is None or other is None:
            present, absent = (names[0], names[1]) if other is None else (names[1], names[0])
            found = one or other
            assert found is not None
            lines.append(f"{key} ({found.kind}): only in {present}, not in {absent}: {_short(found.value)}")
            continue
        lines += _entry_difference(key, one, other, names)
    return lines


def is_ours(key: str) -> bool:
    """Say whether a key is one of ours that BullMQ does not know: `<prefix>:<queue>:ox:…`."""
    parts = key.split(":")
    return len(parts) > 2 and "ox" in parts[2:]


def _is_allowed(key: str, field: str | None) -> bool:
    return any(one.field == field and one.key(key) for one in ALLOWED)


def _comparable(key: str, entry: Entry) -> Entry:
    value = entry.value
    if isinstance(value, dict):
        # The values of a parent's processed children are JSON too.
        all_json = key.endswith(":processed")
        value = {
            field: _canonical(text) if all_json or field in _JSON_FIELDS else text
            for field, text in value.items()
            if not field.startswith("ox:") and not _is_allowed(key, field)
        }
    elif isinstance(value, list) and entry.kind == "stream":
        value = [_comparable_event(fields) for fields in value]
    elif isinstance(value, list) and entry.kind == "zset":
        value = [[member, float(score)] for member, score in value]
    return Entry(entry.kind, entry.ttl, value)


def _comparable_event(fields: list[str]) -> list[str]:
    return [
        _canonical(item) if i % 2 and fields[i - 1] in _JSON_EVENT_FIELDS else item
        for i, item in enumerate(fields)
    ]


def _canonical(text: str) -> str:
    try:
        return "JSON " + json.dumps(_numbers(json.loads(text)), sort_keys=True, ensure_ascii=False)
    except ValueError:
        return text


def _numbers(value: Any) -> Any:
    # 1 and 1.0 are one number in JSON; True is a different value.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: _numbers(item) for name, item in value.items()}
    return value


def _entry_difference(key: str, one: Entry, other: Entry, names: tuple[str, str]) -> list[str]:
    lines: list[str] = []
    if one.kind != other.kind:
        return [f"{key}: {names[0]} has a {one.kind}, {names[1]} a {other.kind}"]
    if (one.ttl is None) != (other.ttl is None) or abs((one.ttl or 0) - (other.ttl or 0)) > TTL_TOLERANCE_MS:
        lines.append(f"{key}: expires in {one.ttl} ms in {names[0]}, {other.ttl} ms in {names[1]}")
    if one.value == other.value:
        return lines
    if isinstance(one.value, dict) and isinstance(other.value, dict):
        for field in sorted(one.value.keys() | other.value.keys()):
            mine, theirs = one.value.get(field), other.value.get(field)
            if mine != theirs:
                lines.append(f"{key}.{field}: {names[0]} {mine!r}, {names[1]} {theirs!r}")
    elif one.kind == "stream":
        lines.append(f"{key} (stream): -{names[0]} +{names[1]}")
        lines += _lines_difference([" ".join(e) for e in one.value], [" ".join(e) for e in other.value])
    else:
        lines.append(f"{key} ({one.kind}): {names[0]} {_short(one.value)}, {names[1]} {_short(other.value)}")
    return lines


def _lines_difference(one: list[str], other: list[str]) -> Iterable[str]:
    for line in difflib.unified_diff(one, other, lineterm="", n=2):
        if not line.startswith(("---", "+++")):
            yield f"    {line}"


def _short(value: Value) -> str:
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:400]}…"
