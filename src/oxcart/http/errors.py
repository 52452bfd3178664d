"""The one shape of every error answer, and how Oxcart's errors become one."""

from __future__ import annotations

import logging
import reprlib
import traceback
from http import HTTPStatus
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException
from litestar.serialization import decode_json
from msgspec import Meta

from oxcart.model import errors

log = logging.getLogger("oxcart.http")

Code = Literal[
    "not_found",
    "invalid_request",
    "validation_error",
    "method_not_allowed",
    "conflict",
    "unauthorized",
    "forbidden",
    "quota_exceeded",
    "internal_error",
    "payload_too_large",
    "not_supported",
    "unavailable",
]

_shorten = reprlib.Repr()
_shorten.maxstring = _shorten.maxother = 80


class Detail(msgspec.Struct, omit_defaults=True):
    """What is wrong with one field."""

    field: str
    code: str
    message: str
    bound: str | None = None
    value: str | None = None


class Problem(msgspec.Struct, omit_defaults=True):
    """What is wrong."""

    code: Code
    message: str
    details: list[Detail] = []
    job_ids: Annotated[
        list[str], Meta(description="Jobs of an add without an answer: they may or may not exist.")
    ] = []
    request_id: str = ""


class ErrorBody(msgspec.Struct):
    """The body of every answer of status 400 or above."""

    error: Problem


class ApiError(Exception):
    """An expected refusal.

    Attributes:
        status: The HTTP status.
        problem: The body.
        headers: Headers of the answer.
    """

    def __init__(self, status: int, code: Code, message: str, *details: Detail) -> None:
        super().__init__(message)
        self.status = status
        self.headers: dict[str, str] = {}
        self.problem = Problem(code, message, list(details))


def body_of(code: Code, message: str, request_id: str = "") -> bytes:
    """Returns the body of an error that is answered outside of the framework."""
    return msgspec.json.encode(ErrorBody(Problem(code, message, request_id=request_id)))


def not_found(what: str) -> ApiError:
    """Returns the error for a thing that does not exist."""
    return ApiError(404, "not_found", f"{what} does not exist")


#: Codes of refusals that the framework makes.
_FRAMEWORK: dict[int, Code] = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "payload_too_large",
    429: "quota_exceeded",
}

#: Errors of Oxcart by class, most special first.
_OURS: tuple[tuple[type[errors.OxcartError], int, Code], ...] = (
    (errors.PayloadTooLarge, 413, "payload_too_large"),
    (errors.ValidationError, 400, "validation_error"),
    (errors.NotSupported, 400, "not_supported"),
    (errors.UnknownDependency, 400, "validation_error"),
    (errors.ChainTooLong, 400, "validation_error"),
    (errors.CrossSlotError, 400, "not_supported"),
    (errors.JobNotFound, 404, "not_found"),
    (errors.JobError, 409, "conflict"),
    (errors.QueueBusy, 409, "conflict"),
    (errors.DecryptionError, 409, "conflict"),
    (errors.BrokerError, 503, "unavailable"),
)


def problem_of(error: Exception) -> tuple[int, Problem]:
    """Returns the status and the body for an error; an unexpected one shows nothing of itself."""
    if isinstance(error, ApiError):
        return error.status, error.problem
    if isinstance(error, HTTPException):
        return _framework(error)
    for kind, status, code in _OURS:
        if isinstance(error, kind):
            return status, _ours(error, code)
    if isinstance(error, RecursionError):
        return 400, Problem("invalid_request", "the body is nested too deeply")
    if isinstance(error, UnicodeDecodeError) and _is_of_body(error):
        return 400, Problem("invalid_request", "the body is no UTF-8")
    if isinstance(error, TimeoutError):
        return 503, Problem("unavailable", "the request took too long; the store may be unreachable")
    return 500, Problem("internal_error", "an unexpected error; the server's log has it under the request id")


def _is_of_body(error: UnicodeDecodeError) -> bool:
    """Whether the framework met it in the JSON of a request, and not we in what is stored."""
    return any(frame.f_code is decode_json.__code__ for frame, _ in traceback.walk_tb(error.__traceback__))


def _framework(error: HTTPException) -> tuple[int, Problem]:
    status = error.status_code
    if status >= 500:
        return 500, Problem("internal_error", "an unexpected error; the server's log has it")
    extra: Any = error.extra
    details = [_detail(one) for one in extra if isinstance(one, dict)] if isinstance(extra, list) else []
    if status == 400 and details:
        return 400, Problem(
            "validation_error", "; ".join(f"{d.field}: {d.message}" for d in details), details
        )
    if status in (404, 405):
        return status, Problem(_FRAMEWORK[status], HTTPStatus(status).phrase.lower())
    known = _FRAMEWORK.get(status)
    # The framework names the cause of a body that is no JSON in its own words, without a stack.
    return (status if known else 400), Problem(
        known or "invalid_request", error.detail or "bad request", details
    )


def _detail(extra: dict[str, Any]) -> Detail:
    message = str(extra.get("message", "invalid"))
    return Detail(str(extra.get("key") or "body"), "invalid", message)


def _ours(error: errors.OxcartError, code: Code) -> Problem:
    made = Problem(code, str(error))
    if isinstance(error, errors.ValidationError):
        value = _shorten.repr(error.value)
        made.details = [Detail(error.field, "invalid", str(error), error.bound, value)]
    elif isinstance(error, errors.UnknownDependency | errors.ChainTooLong):
        made.details = [Detail("depends_on", "invalid", str(error))]
    elif isinstance(error, errors.Unacknowledged):
        made.job_ids = list(error.job_ids)
    return made


def answer(request: Request[Any, Any, Any], error: Exception) -> Response[ErrorBody | None]:
    """Answers a request with an error; logs an unexpected one with its stack.

    A browser that opens a page without a session is led to the form to sign in.
    """
    status, problem = problem_of(error)
    problem = msgspec.structs.replace(problem, request_id=request.scope.get("oxcart.request_id", ""))
    if status == 500:
        log.error(
            "request %s failed: %s %s", problem.request_id, request.method, request.url.path, exc_info=error
        )
    if status == 401 and request.method == "GET" and _is_page(request):
        after = f"{request.scope['path']}?{request.scope['query_string'].decode('latin-1')}".rstrip("?")
        root = request.scope.get("oxcart.root", "")
        where = f"{root}/sign-in?next={quote(after, safe='')}"
        return Response(None, status_code=303, headers={"Location": where})
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if isinstance(error, ApiError):
        headers |= error.headers
    if status == 405 and isinstance(error, HTTPException):
        headers |= {name: value for name, value in (error.headers or {}).items() if name.lower() == "allow"}
    return Response(ErrorBody(problem), status_code=status, media_type=MediaType.JSON, headers=headers)


def _is_page(request: Request[Any, Any, Any]) -> bool:
    is_api = request.scope["path"].startswith(("/api/", "/metrics"))
    return not is_api and "text/html" in request.headers.get("accept", "")
