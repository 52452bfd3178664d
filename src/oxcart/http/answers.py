"""Answers that hold half of a character: ids and names that a peer stored and that are no text."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from litestar import Response
from litestar.exceptions import ImproperlyConfiguredException
from litestar.serialization import default_serializer
from litestar.types import Serializer


class Answer(Response[Any]):
    """A response whose JSON escapes half of a surrogate pair, which has no UTF-8 form, as JavaScript does."""

    def render(self, content: Any, media_type: str, enc_hook: Serializer = default_serializer) -> bytes:
        """Returns the body."""
        try:
            return super().render(content, media_type, enc_hook)
        except ImproperlyConfiguredException as error:
            if not isinstance(error.__cause__, UnicodeEncodeError) or "json" not in media_type:
                raise
            plain = msgspec.to_builtins(content, str_keys=True, enc_hook=enc_hook)
            return json.dumps(plain, separators=(",", ":"), default=_decoded).encode()


def _decoded(value: Any) -> Any:
    if isinstance(value, msgspec.Raw):
        return json.loads(bytes(value))
    raise TypeError(f"{type(value).__name__} has no JSON form")
