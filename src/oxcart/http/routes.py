"""What routes share: the queues that they receive, and the answers that the OpenAPI document lists."""

from __future__ import annotations

from typing import Any

from litestar.di import NamedDependency
from litestar.openapi import ResponseSpec

from oxcart.http.errors import ErrorBody
from oxcart.http.service import Service

_WORDS = {
    400: "A field or parameter is wrong; details name it.",
    401: "The request has no known key.",
    403: "The caller's role does not allow it.",
    404: "It does not exist.",
    409: "The present state does not allow it.",
    413: "The body is too large.",
    429: "Too many at once.",
    500: "An unexpected error.",
    503: "The store cannot be reached.",
}

#: The queues behind the API, as a route receives them.
Api = NamedDependency[Service]

Ok = tuple[int, Any, str]


def answers(*codes: int, ok: Ok | None = None, also: Ok | None = None) -> dict[int, ResponseSpec]:
    """Returns the documented answers of a guarded route.

    Args:
        *codes: Its own refusals. Those of every guarded route are added.
        ok: Status, body and meaning of success; None if the route's annotation suffices.
        also: A second kind of success.
    """
    found: dict[int, ResponseSpec] = {}
    for one in (ok, also):
        if one is not None:
            found[one[0]] = ResponseSpec(one[1], generate_examples=False, description=one[2])
    for code in sorted({400, 401, 403, 429, 500, 503, *codes}):
        found[code] = ResponseSpec(ErrorBody, generate_examples=False, description=_WORDS[code])
    return found
