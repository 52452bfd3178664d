"""Checks of a job's metadata: tags, correlation id, callback URL, limit key.

All but the limit key can be changed until the job has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from oxcart.model.errors import ValidationError

#: The maximum number of tags.
MAX_TAGS = 32
#: Characters of a tag's name, and of its value.
MAX_TAG_NAME, MAX_TAG_VALUE = 64, 256
#: Characters of a correlation id.
MAX_CORRELATION_ID = 256
#: Characters of the key of a limit.
MAX_LIMIT_KEY = 256
#: Characters of a callback URL.
MAX_URL = 2048


def check_tags(value: Any, field: str = "tags") -> dict[str, str]:
    """Returns the tags if they are valid: names with values, both text.

    Raises:
        ValidationError: There are too many tags, or one is too long or no text.
    """
    if not isinstance(value, Mapping):
        raise ValidationError(field, "a mapping of names to values", value)
    if len(value) > MAX_TAGS:
        raise ValidationError(field, f"at most {MAX_TAGS} tags", len(value))
    for name, text in value.items():
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_TAG_NAME or not _is_text(name):
            raise ValidationError(field, f"a mapping whose names have 1 to {MAX_TAG_NAME} characters", name)
        if not isinstance(text, str) or len(text) > MAX_TAG_VALUE or not _is_text(text):
            bound = f"a mapping whose values are text of at most {MAX_TAG_VALUE} characters"
            raise ValidationError(f"{field}[{name!r}]", bound, text)
    return dict(value)


def check_correlation_id(value: Any, field: str = "correlation_id") -> str:
    """Returns the correlation id if it is valid.

    Raises:
        ValidationError: It is empty, too long, or not printable.
    """
    return _printable(value, field, MAX_CORRELATION_ID)  # log lines and headers contain it


def check_limit_key(value: Any, field: str = "limit_key") -> str:
    """Returns the key whose limits apply to a job if it is valid.

    Raises:
        ValidationError: It is empty, too long, or not printable.
    """
    return _printable(value, field, MAX_LIMIT_KEY)


def check_partition_key(value: Any, field: str = "partition_key") -> str:
    """Returns the key that decides about a job's partition if it is valid.

    Raises:
        ValidationError: It is empty, too long, or not printable.
    """
    return _printable(value, field, MAX_LIMIT_KEY)


def check_url(value: Any, field: str = "callback_url") -> str:
    """Returns a callback URL if its form is valid. The sender checks the host's address.

    Raises:
        ValidationError: It is no http or https URL, or it contains a password.
    """
    bound = f"an http or https URL of at most {MAX_URL} characters"
    if not isinstance(value, str) or len(value) > MAX_URL or not value.isascii() or not value.isprintable():
        raise ValidationError(field, bound, value)
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValidationError(field, bound, value) from None
    if parts.scheme not in ("http", "https") or not host or " " in value:
        raise ValidationError(field, bound, value)
    if parts.username is not None or parts.password is not None:
        raise ValidationError(field, "a URL without user and password: it is stored with the job", host)
    return value


def _printable(value: Any, field: str, most: int) -> str:
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= most
        or not value.isprintable()
        or not _is_text(value)
    ):
        raise ValidationError(field, f"text of 1 to {most} printable characters", value)
    return value


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True
