"""Sessions of the dashboard: sign in with a key, sign out, and tokens against forged requests.

A session is a signed cookie with the id of a key, never the key itself. It ends with the key, after 12 hours,
or by signing out. The secret that signs it is kept beside the keys, so that sessions survive a restart.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import html
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from litestar import MediaType, Request, Response, get, post
from litestar.params import QueryParameter
from msgspec import Meta

from oxcart.broker import access
from oxcart.broker.access import AccessStore
from oxcart.http.credentials import Caller, Connection, Credentials, caller_of
from oxcart.http.errors import ApiError
from oxcart.http.routes import answers
from oxcart.model.access import Role
from oxcart.model.errors import BrokerError

COOKIE = "oxcart_session"
CSRF_HEADER = "X-CSRF-Token"
CSRF_FIELD = "csrf_token"
#: Seconds that a session lasts.
LIFETIME = 12 * 3600
#: Seconds for which the signing secret is remembered.
FRESH = 60.0
#: Sessions that were signed out, which are remembered until they would have ended.
ENDED = 10_000
#: Bytes of the sign-in form at most.
MAX_FORM = 4096

SIGN_IN = "/sign-in"
SIGN_OUT = "/sign-out"


#: Who tried to sign in with a key that is not known.
UNKNOWN = Caller(id=access.UNKNOWN, kind="key", grants=())


class Session(msgspec.Struct, array_like=True, frozen=True):
    """What the cookie holds."""

    who: str
    expires: int
    nonce: str


class Sessions:
    """Signs and reads session cookies.

    Args:
        store: Where the signing secret is kept; None for one that ends with the process.
        clock: Returns seconds since 1970.
    """

    def __init__(self, store: AccessStore | None = None, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._secret: bytes | None = None if store is not None else secrets.token_bytes(32)
        self._read_at = -FRESH
        self._ended: OrderedDict[str, int] = OrderedDict()

    async def open(self, caller: Caller) -> str:
        """Returns the cookie of a new session."""
        made = Session(caller.id, int(self._clock()) + LIFETIME, secrets.token_urlsafe(16))
        body = _b64(msgspec.json.encode(made))
        return f"{body}.{_b64(await self._sign(f'session:{body}'))}"

    async def read(self, cookie: str) -> Session | None:
        """Returns the session of a cookie, or None if it is forged or over."""
        body, _, signature = cookie.partition(".")
        try:
            given = _unb64(signature)
            if not hmac.compare_digest(given, await self._sign(f"session:{body}")):
                return None
            found = msgspec.json.decode(_unb64(body), type=Session)
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            return None
        return found if found.expires > self._clock() and found.nonce not in self._ended else None

    async def find(self, connection: Connection, credentials: Credentials) -> Caller | None:
        """Returns the caller of a request with a session whose key still works, or None."""
        cookie = connection.cookies.get(COOKIE)
        session = await self.read(cookie) if cookie else None
        if session is None or (found := await credentials.named(session.who)) is None:
            return None
        return msgspec.structs.replace(found, kind="session", csrf=await self.csrf(session.nonce))

    async def end(self, connection: Connection) -> None:
        """Ends the session of a request; this server no longer takes its cookie."""
        cookie = connection.cookies.get(COOKIE)
        session = await self.read(cookie) if cookie else None
        if session is not None:
            self._ended[session.nonce] = session.expires
            while len(self._ended) > ENDED:
                self._ended.popitem(last=False)

    async def csrf(self, of: str) -> str:
        """Returns the token against forged requests of a session."""
        return _b64(await self._sign(f"csrf:{of}"))

    async def _sign(self, text: str) -> bytes:
        if self._store is not None and time.monotonic() - self._read_at > FRESH:
            try:
                self._secret = await self._store.session_secret()
            except BrokerError:
                if self._secret is None:
                    raise
            self._read_at = time.monotonic()
        assert self._secret is not None
        return hmac.new(self._secret, text.encode("utf-8", "surrogateescape"), hashlib.sha256).digest()


class SessionBody(msgspec.Struct, kw_only=True):
    """Who the caller is, and what it may do."""

    caller: str
    name: str
    kind: Annotated[str, Meta(description="key, session, forward, local or trusted.")]
    role: Annotated[str, Meta(description="The highest role on any queue.")]
    grants: Annotated[list[str], Meta(examples=[["operator@emails*", "observer"]])]
    payloads: bool
    csrf_token: Annotated[
        str | None, Meta(description="Unsafe requests of a session carry it in X-CSRF-Token.")
    ]


def root_of(connection: Connection) -> str:
    """Returns the path below which the API is mounted, without a slash at its end."""
    found: str = connection.scope.get("oxcart.root", "")  # type: ignore[assignment]
    return found


@get(
    "/api/v1/session",
    summary="Read who the caller is",
    responses=answers(ok=(200, SessionBody, "The caller.")),
    opt={"role": Role.OBSERVER},
)
async def session(request: Request[Any, Any, Any]) -> SessionBody:
    """Returns the caller with its grants, and the token that unsafe requests of a session carry."""
    caller = caller_of(request)
    assert caller is not None  # the guard lets nobody else in
    return SessionBody(
        caller=caller.id,
        name=caller.name,
        kind=caller.kind,
        role=str(caller.role),
        grants=[str(grant) for grant in caller.grants],
        payloads=caller.payloads or caller.role >= Role.OPERATOR,
        csrf_token=caller.csrf,
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Sign in · Oxcart</title><link rel="icon" href="{root}/static/ox.svg" type="image/svg+xml">
<link rel="stylesheet" href="{root}/static/oxcart.css"></head>
<body class="sign-in"><main class="card">
<h1><img src="{root}/static/ox.svg" alt="" width="40" height="40">Oxcart</h1>
<form method="post" action="{root}{path}">
{error}<label for="key">API key</label><input id="key" name="key" type="password" required
 autocomplete="current-password" autofocus>
<input type="hidden" name="next" value="{next}">
<button class="button good" type="submit">Sign in</button></form>
<p class="soft">An administrator makes keys with <code>oxcart access create</code>.</p></main></body></html>
"""


def sign_in_page(root: str, after: str, error: str = "") -> str:
    """Returns the page with the form."""
    shown = f'<p role="alert" class="cause">{html.escape(error)}</p>\n' if error else ""
    return _PAGE.format(root=html.escape(root), path=SIGN_IN, next=html.escape(after), error=shown)


def safe_next(text: str) -> str:
    """Returns a path of this application to go to after signing in; never another site."""
    fine = text.startswith("/") and not text.startswith("//") and "\\" not in text and text.isprintable()
    return quote(text, safe="/?&=%#:@,;+~.-_*") if fine else "/"


@get(SIGN_IN, media_type=MediaType.HTML, include_in_schema=False, opt={"role": None})
async def sign_in(
    request: Request[Any, Any, Any], after: Annotated[str, QueryParameter(name="next")] = "/"
) -> Response[str]:
    """Shows the form."""
    return Response(sign_in_page(root_of(request), safe_next(after)), media_type=MediaType.HTML)


@post(
    SIGN_IN,
    include_in_schema=False,
    status_code=303,
    request_max_body_size=MAX_FORM,
    opt={"role": None, "from_page": True},
)
async def sign_in_with_key(request: Request[Any, Any, Any]) -> Response[str | None]:
    """Opens a session for the key of the form."""
    guard = request.app.state.guard
    form = await request.form()
    after, root = safe_next(str(form.get("next", "/"))), root_of(request)
    try:
        caller = await guard.by_key(request, str(form.get("key", "")).strip())
    except ApiError as error:
        text = "This key is not known, or it has expired." if error.status == 401 else str(error)
        if error.status == 401:  # so often as the limit per address allows; what is beyond it is not recorded
            request.scope["oxcart.caller"] = UNKNOWN  # type: ignore[typeddict-unknown-key]
        return Response(
            sign_in_page(root, after, text),
            status_code=error.status,
            media_type=MediaType.HTML,
            headers=error.headers,
        )
    request.scope["oxcart.caller"] = caller  # type: ignore[typeddict-unknown-key]
    made = Response[str | None](None, status_code=303, headers={"Location": f"{root}{after}"})
    _set(made, request, await request.app.state.sessions.open(caller), LIFETIME)
    return made


@post(SIGN_OUT, include_in_schema=False, status_code=303, opt={"role": Role.OBSERVER, "audit": True})
async def sign_out(request: Request[Any, Any, Any]) -> Response[None]:
    """Ends the session."""
    await request.app.state.sessions.end(request)
    made = Response[None](None, status_code=303, headers={"Location": f"{root_of(request)}{SIGN_IN}"})
    _set(made, request, "", 0)
    return made


def _set(response: Response[Any], request: Request[Any, Any, Any], value: str, seconds: int) -> None:
    response.set_cookie(
        COOKIE,
        value,
        max_age=seconds,
        path=root_of(request) or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


ROUTES = [session, sign_in, sign_in_with_key, sign_out]
