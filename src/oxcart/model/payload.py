"""Job data as JSON: fast for the plain case, careful for the rest.

msgspec alone would write NaN as null and bytes as text that nobody can tell from text, both without a
word. So data that is not plainly safe is looked through first, and nothing reaches the server that
would come back as something else.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import Any, NoReturn

import msgspec

from oxcart.model.errors import PayloadError, PayloadTooLarge, Undecodable

#: Limit of data and options together, in bytes, unless the job says otherwise.
DEFAULT_SIZE_LIMIT = 10 * 1024 * 1024

#: The highest limit a job may ask for.
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
    """Encode a value as JSON.

    ``bytes`` travel as ``{"$bytes": "<base64>"}``. Dates, UUIDs, decimals, enums, dataclasses and Structs
    are encoded as msgspec does, a ``msgspec.Raw`` as the JSON that it holds. Integers beyond 2**53 are
    written exactly, but Node reads them rounded.

    Args:
        value: Any value JSON can hold, and the kinds above.
        field: What the value is, for the error.

    Raises:
        PayloadError: The value holds NaN or an infinity, contains itself, has a key that is neither a
            string nor an integer, an integer beyond 64 bit, or an object of an unsupported type.
    """
    try:
        if type(value) is dict:
            # The common job is a flat dict. One loop, spelled out: in C (map, issuperset) it is slower.
            for key, item in value.items():
                kind = type(item)
                if type(key) is not str:
                    break
                if kind is str or item is None or kind is bool:
                    continue
                if kind is int and _MIN_INT <= item <= _MAX_INT:
                    continue
                break
            else:
                return _encode(value)
        if type(value) is msgspec.Raw:
            return bytes(value)
        if _is_plain(value):
            return _encode(value)
        return _encode(_convert(value, (field,)))
    except UnicodeEncodeError:
        return _encode_escaped(value, field)
    except RecursionError:
        raise PayloadError(field, "free of circles and not nested too deeply", type(value)) from None


def decode(raw: bytes | str, *, field: str = "data") -> Any:
    """Decode JSON that `encode` or a peer wrote, ``{"$bytes": …}`` as bytes.

    Raises:
        PayloadError: The text is not JSON, or is nested too deeply, or holds a number of too many digits.
    """
    value = read(raw, field=field)
    # Looking for one byte is several times cheaper than for a string, and most payloads have no "$".
    if isinstance(raw, str):
        marked = "$" in raw and '"$bytes"' in raw
    else:
        marked = _DOLLAR in raw and b'"$bytes"' in raw
    try:
        return _restore(value) if marked else value
    except RecursionError:
        raise _too_deep(raw, field) from None


def decode_stored(raw: bytes, field: str) -> Any:
    """As `decode`, for a field of a stored job that its worker needs.

    Raises:
        Undecodable: The field is not JSON, or is nested too deeply, or holds a number of too many digits.
    """
    try:
        return decode(raw, field=field)
    except PayloadError as error:
        raise Undecodable(error.field, error.bound, error.value) from error


def read(raw: bytes | str | msgspec.Raw, *, field: str = "data") -> Any:
    """Decode JSON as it stands, without a look for bytes.

    Accepts what Node writes and strict readers refuse: half of a surrogate pair, escaped or raw. It becomes
    half of a pair in the `str`, and `encode` escapes it again. Integers of any size stay exact.

    Raises:
        PayloadError: The text is not JSON, or is nested too deeply, or holds a number of too many digits.
    """
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeError) as error:
        return _read_leniently(raw, field, error)
    except RecursionError:
        raise _too_deep(raw, field) from None


def check_size(data: bytes, opts: bytes, limit: int | None = None) -> None:
    """Refuse a job whose data and options together are over the limit.

    Args:
        data: The encoded data.
        opts: The encoded options.
        limit: Bytes; None is the default of 10 MiB.

    Raises:
        PayloadTooLarge: They are.
    """
    bound = DEFAULT_SIZE_LIMIT if limit is None else limit
    size = len(data) + len(opts)
    if size > bound:
        raise PayloadTooLarge(size, bound)


def _is_plain(value: Any) -> bool:
    """Whether a value holds only what msgspec writes faithfully by itself."""
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
    """A copy made only of what `_is_plain` allows; raises where there is none."""
    kind = type(value)
    if isinstance(value, _SUBCLASSED) and kind not in _SCALARS:
        # msgspec refuses subclasses (numpy's float64 is one); their plain value says the same.
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
        if name in result:  # {1: …, "1": …}: one of them would vanish on the way
            _refuse(path, f"an object without two keys that both read {name!r}", key)
        result[name] = _convert(item, (path, name))
    return result


def _convert_object(value: Any, path: _Path) -> Any:
    """Whatever msgspec knows (dates, enums, dataclasses, sets …), opened one level at least."""
    try:
        opened = msgspec.to_builtins(value, builtin_types=_BINARY, enc_hook=_plain_value)
    except RecursionError:
        raise
    except (TypeError, ValueError, OverflowError, UnicodeError):
        _refuse(path, "something JSON can hold", value)
    if type(opened) is type(value):  # nothing was opened: going on would never end
        _refuse(path, "something JSON can hold", value)
    return _convert(opened, path)


def _plain_value(value: Any) -> Any:
    """The str, int or float inside an instance of a subclass."""
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
    """Half of a surrogate pair has no UTF-8 form; JavaScript writes it as an escape, and so do we."""
    return json.dumps(_convert(value, (field,)), separators=(",", ":"), allow_nan=False).encode()


def _read_leniently(raw: bytes | str | msgspec.Raw, field: str, error: Exception) -> Any:
    """The slow reader, for half of a surrogate pair; NaN and Infinity are still no JSON."""
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
    """Turn every ``{"$bytes": …}`` back into bytes."""
    if isinstance(value, dict):
        text = value.get(_BYTES_KEY)
        if len(value) == 1 and isinstance(text, str):
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                return value  # somebody else's object of that shape
        return {key: _restore(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restore(item) for item in value]
    return value
