"""Job data as JSON: fast for plain values, checked for all others.

msgspec alone would silently write NaN as null, and bytes as ordinary text. So `encode` checks values that are
not plainly safe, and refuses a value that would come back as another.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import Any, NoReturn

import msgspec

from oxcart.model.errors import PayloadError, PayloadTooLarge, Undecodable

#: Default limit of data and options together, in bytes.
DEFAULT_SIZE_LIMIT = 10 * 1024 * 1024

#: The highest limit that a job may set.
MAX_SIZE_LIMIT = 16 * 1024 * 1024

_BYTES_KEY = "$bytes"
_DOLLAR = ord("$")

# msgspec writes larger integers too, but Go, Rust and Java peers cannot read them.
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1

_only_str = frozenset({str}).issuperset
_SUBCLASSED = (str, int, float)
_SCALARS = frozenset({str, int, bool, float})
_BINARY = (bytes, bytearray, memoryview)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

# A chain of (parent, key) that costs one tuple per level and becomes text only in an error.
_Path = tuple[Any, ...]


def encode(value: Any, *, field: str = "data") -> bytes:
    """Encodes a value as JSON.

    ``bytes`` become ``{"$bytes": "<base64>"}``. Dates, UUIDs, decimals, enums, dataclasses and Structs are
    encoded as msgspec does, a ``msgspec.Raw`` as its JSON. Integers beyond 2**53 are written exactly, but
    Node rounds them.

    Args:
        value: Any JSON value, or one of the types above.
        field: The name of the field, for the error.

    Raises:
        PayloadError: The value contains NaN or an infinity, contains itself, has a key that is neither a
            string nor an integer, an integer beyond 64 bit, or an object of an unsupported type.
    """
    try:
        kind = type(value)
        if kind is str or value is None or kind is bool:
            return _encode(value)
        if kind is dict:
            # The common job is a flat dict. One loop, spelled out: in C (map, issuperset) it is slower.
            for key, item in value.items():
                inner = type(item)
                if type(key) is not str:
                    break
                if inner is str or item is None or inner is bool:
                    continue
                if inner is int and _MIN_INT <= item <= _MAX_INT:
                    continue
                break
            else:
                return _encode(value)
        if kind is msgspec.Raw:
            return bytes(value)
        if _is_plain(value):
            return _encode(value)
        return _encode(_convert(value, (field,)))
    except UnicodeEncodeError:
        return _encode_escaped(value, field)
    except RecursionError:
        raise PayloadError(field, "free of circles and not nested too deeply", type(value)) from None


def decode(raw: bytes | str, *, field: str = "data") -> Any:
    """Decodes JSON that `encode` or a peer wrote, with ``{"$bytes": …}`` as bytes.

    Raises:
        PayloadError: The text is not JSON, is nested too deeply, or contains a number of too many digits.
    """
    value = read(raw, field=field)
    # Searching one byte is several times cheaper than a string, and most payloads have no "$".
    if isinstance(raw, str):
        marked = "$" in raw and '"$bytes"' in raw
    else:
        marked = _DOLLAR in raw and b'"$bytes"' in raw
    try:
        return _restore(value) if marked else value
    except RecursionError:
        raise _too_deep(raw, field) from None


def decode_stored(raw: bytes, field: str) -> Any:
    """Decodes a field of a stored job, like `decode`.

    Raises:
        Undecodable: The field is not JSON, is nested too deeply, or contains a number of too many digits.
    """
    try:
        return decode(raw, field=field)
    except PayloadError as error:
        raise Undecodable(error.field, error.bound, error.value) from error


def read(raw: bytes | str | msgspec.Raw, *, field: str = "data") -> Any:
    """Decodes JSON without converting ``{"$bytes": …}``.

    It accepts half of a surrogate pair, escaped or raw, which Node writes and strict readers refuse. It
    becomes half of a pair in the `str`, and `encode` escapes it again. Integers of any size stay exact.

    Raises:
        PayloadError: The text is not JSON, is nested too deeply, or contains a number of too many digits.
    """
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeError) as error:
        return _read_leniently(raw, field, error)
    except RecursionError:
        raise _too_deep(raw, field) from None


def check_size(data: bytes, opts: bytes, limit: int | None = None) -> None:
    """Checks the size of a job's data and options.

    Args:
        data: The encoded data.
        opts: The encoded options.
        limit: Bytes; None is the default of 10 MiB.

    Raises:
        PayloadTooLarge: They exceed the limit together.
    """
    bound = DEFAULT_SIZE_LIMIT if limit is None else limit
    size = len(data) + len(opts)
    if size > bound:
        raise PayloadTooLarge(size, bound)


def _is_plain(value: Any) -> bool:
    """Returns whether msgspec writes a value faithfully by itself."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return True
    if kind is int:
        return bool(_MIN_INT <= value <= _MAX_INT)
    if kind is float:
        return math.isfinite(value)
    if kind is dict:
        return _only_str(map(type, value)) and all(map(_is_plain, value.values()))
    if kind is list or kind is tuple:
        return all(map(_is_plain, value))
    return False


def _convert(value: Any, path: _Path) -> Any:
    """Returns a copy that contains only plain values, or raises."""
    kind = type(value)
    if isinstance(value, _SUBCLASSED) and kind not in _SCALARS:
        # msgspec refuses subclasses such as numpy's float64; their plain value is equal.
        value = _plain_value(value)
        kind = type(value)
    if kind is int:
        if not _MIN_INT <= value <= _MAX_INT:
            _refuse(path, "an integer of at most 64 bit", value)
        return value
    if kind is float:
        if not math.isfinite(value):
            _refuse(path, "a finite number", value)
        return value
    if value is None or kind in _SCALARS:
        return value
    if isinstance(value, _BINARY):
        return {_BYTES_KEY: base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return _convert_dict(value, path)
    if isinstance(value, list | tuple):
        return [_convert(item, (path, index)) for index, item in enumerate(value)]
    return _convert_object(value, path)


def _convert_dict(value: dict[Any, Any], path: _Path) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(key, str):
            name = str.__str__(key)  # an Enum that is a str, as its value
        elif isinstance(key, int) and not isinstance(key, bool):
            name = int.__repr__(key)
        else:
            _refuse(path, "an object whose keys are strings or integers", key)
        if name in result:  # {1: …, "1": …}: one of them would be lost
            _refuse(path, f"an object without two keys that both read {name!r}", key)
        result[name] = _convert(item, (path, name))
    return result


def _convert_object(value: Any, path: _Path) -> Any:
    """Converts one level of a type that msgspec knows (dates, enums, dataclasses, sets …)."""
    try:
        opened = msgspec.to_builtins(value, builtin_types=_BINARY, enc_hook=_plain_value)
    except RecursionError:
        raise
    except (TypeError, ValueError, OverflowError, UnicodeError):
        _refuse(path, "something JSON can hold", value)
    if type(opened) is type(value):  # nothing was converted: continuing would never end
        _refuse(path, "something JSON can hold", value)
    return _convert(opened, path)


def _plain_value(value: Any) -> Any:
    """Returns the str, int or float of an instance of a subclass."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _refuse(path: _Path, bound: str, value: Any) -> NoReturn:
    raise PayloadError(_render(path), bound, value)


def _render(path: _Path) -> str:
    parts: list[str] = []
    while len(path) == 2:
        path, key = path
        parts.append(f"[{key}]" if isinstance(key, int) else f".{key}")
    return "".join([str(path[0]), *reversed(parts)])


def _encode_escaped(value: Any, field: str) -> bytes:
    """Escapes half of a surrogate pair, which has no UTF-8 form, as JavaScript does."""
    return json.dumps(_convert(value, (field,)), separators=(",", ":"), allow_nan=False).encode()


def _read_leniently(raw: bytes | str | msgspec.Raw, field: str, error: Exception) -> Any:
    """Decodes JSON with half of a surrogate pair, slowly. NaN and Infinity stay invalid."""
    try:
        text = raw if isinstance(raw, str) else bytes(raw).decode("utf-8", "surrogatepass")
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise _too_deep(raw, field) from None
    except ValueError as fault:  # also text that is no UTF-8, and integers beyond Python's limit of digits
        if "digits" in str(fault):
            raise PayloadError(field, "free of integers of over 4300 digits", _size(raw)) from fault
        raise PayloadError(field, f"JSON ({error})", _size(raw)) from error


def _too_deep(raw: bytes | str | msgspec.Raw, field: str) -> PayloadError:
    return PayloadError(field, "JSON that is not nested too deeply", _size(raw))


def _size(raw: bytes | str | msgspec.Raw) -> str:
    if isinstance(raw, msgspec.Raw):
        raw = bytes(raw)
    return f"{len(raw)} bytes of something else"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _restore(value: Any) -> Any:
    """Converts every ``{"$bytes": …}`` into bytes."""
    if isinstance(value, dict):
        text = value.get(_BYTES_KEY)
        if len(value) == 1 and isinstance(text, str):
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                return value  # another client's object of that form
        return {key: _restore(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restore(item) for item in value]
    return value
