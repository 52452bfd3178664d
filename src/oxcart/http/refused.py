"""The error of a client whose request the API refused. It needs none of the packages of ``oxcart[web]``."""

from __future__ import annotations

from typing import Any

from oxcart.model.errors import NotSupported, OxcartError


def unsupported(feature: str, words: str, alternative: str = "open it by its server's URL") -> NotSupported:
    """Returns the error for something that the HTTP API does not have."""
    return NotSupported("HTTP", feature, words, alternative)


class ApiRefused(OxcartError):
    """The API refused a request.

    Attributes:
        status: The HTTP status.
        code: The code of the error, for example ``validation_error``.
        details: What is wrong with which field, as the API describes it.
        request_id: The id of the request, for the server's log.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: list[dict[str, Any]] | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(status, code, message, details, request_id)
        self.status = status
        self.code = code
        self.details = details or []
        self.request_id = request_id

    def __str__(self) -> str:
        return f"{self.args[2]} ({self.status} {self.code})"
