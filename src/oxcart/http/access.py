"""Which caller may use which route: the guard of all routes.

Every route names the role that it needs in its ``opt``; a route that names none is closed. The guard finds
the caller: by a key or token, by a session of the dashboard, by a header of a trusted proxy, or, without any
keys, because the request comes from this machine. A route then receives only the queues on which the caller
has the role (`Service.seen_by`).
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from litestar import Request
from litestar.enums import RequestEncodingType
from litestar.handlers.base import BaseRouteHandler

from oxcart.http.credentials import Caller, Connection, Credentials
from oxcart.http.errors import ApiError
from oxcart.http.rates import Rates
from oxcart.http.sessions import CSRF_FIELD, CSRF_HEADER, Sessions
from oxcart.model.access import Grant, Role, parse_grants
from oxcart.model.errors import OxcartError, ValidationError

#: The ``opt`` of a route that needs a role.
READ: dict[str, Any] = {"role": Role.OBSERVER}
SUBMIT: dict[str, Any] = {"role": Role.SUBMITTER}
OPERATE: dict[str, Any] = {"role": Role.OPERATOR}
ADMIN: dict[str, Any] = {"role": Role.ADMIN}
#: The ``opt`` of a route that is open to all.
OPEN: dict[str, Any] = {"role": None}

#: Methods that change nothing.
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
#: Failed attempts to name a key per second and address in the long run, and at once.
FAILED_RATE, FAILED_BURST = 1.0, 20.0

_EVERYTHING = (Grant(Role.ADMIN),)


class Forward:
    """Trusts a proxy that has checked the user and names it in a header.

    Args:
        header: The header with the user, for example ``X-Forwarded-User``.
        trusted: Addresses or networks of the proxies. From elsewhere the header is ignored.
        grants: What each user may do, as ``operator@emails*``; several are separated by commas.
        default: What other users may do; None to refuse them.

    Raises:
        ValidationError: There is no address, or a value has another form.
    """

    def __init__(
        self,
        header: str,
        trusted: Iterable[str],
        *,
        grants: Mapping[str, str] | None = None,
        default: str | None = None,
    ) -> None:
        self.header = header.strip().lower()
        if not self.header:
            raise ValidationError("forward header", "the name of a header", header)
        try:
            self._networks = [ipaddress.ip_network(one) for one in trusted]
        except ValueError as error:
            raise ValidationError(
                "forward trusted", "addresses or networks such as 10.0.0.0/8", str(error)
            ) from None
        if not self._networks:
            raise ValidationError("forward trusted", "at least one address or network", [])
        self._grants = {user: parse_grants(text.split(",")) for user, text in (grants or {}).items()}
        self._default = None if default is None else parse_grants(default.split(","))

    def user(self, connection: Connection) -> str | None:
        """Returns the user that a trusted proxy names, or None."""
        given = connection.headers.getall(self.header, [])
        client = connection.client
        # Of a header that is given twice, one may be the caller's own.
        if len(given) != 1 or not given[0].strip() or client is None:
            return None
        name: str = given[0].strip()
        try:
            address = ipaddress.ip_address(client.host)
        except ValueError:
            return None
        if "," in name or not any(address in network for network in self._networks):
            return None
        return name

    def grants_of(self, user: str) -> tuple[Grant, ...] | None:
        """Returns what a user may do, or None if nothing."""
        return self._grants.get(user, self._default)


class Guard:
    """Checks every request before its route runs.

    Args:
        credentials: The keys. Without any, only callers on this machine are let in, as admins.
        sessions: The sessions of the dashboard.
        trusted: Whether all callers are let in without a key, because something in front checks them.
        forward: The proxy that names users, or None.
        origins: Sites whose pages may call the API.
        rates: How often each key may call.
    """

    def __init__(
        self,
        credentials: Credentials,
        sessions: Sessions,
        *,
        trusted: bool = False,
        forward: Forward | None = None,
        origins: Iterable[str] = (),
        rates: Rates | None = None,
    ) -> None:
        self._credentials = credentials
        self._sessions = sessions
        self._trusted = trusted
        self._forward = forward
        self._origins = frozenset(origins)
        self._rates = rates or Rates(None, 1)
        self._failures = Rates(FAILED_RATE, FAILED_BURST)

    async def __call__(self, connection: Connection, handler: BaseRouteHandler) -> None:
        """Lets a request through, or raises.

        Raises:
            ApiError: 401 without a known key, 403 without the role, 429 for too many requests.
        """
        # A route that names no role at all is closed, so that a forgotten one is not open.
        needed: Role | None = handler.opt.get("role", Role.ADMIN)
        scope: Any = connection.scope
        if needed is None:
            if handler.opt.get("from_page") and scope["method"] not in SAFE:
                self.check_site(connection)
            return
        caller = await self.identify(connection)
        scope["oxcart.caller"], scope["oxcart.needed"] = caller, needed
        if caller.kind not in ("local", "trusted"):
            self._rates.take(caller.id)
        if caller.role < needed:
            raise ApiError(403, "forbidden", f"this needs the role {needed}; the caller has {caller.role}")
        if scope["method"] not in SAFE and caller.kind != "key":
            self.check_site(connection)
            if caller.csrf is not None:
                await _check_csrf(connection, caller.csrf)

    async def identify(self, connection: Connection) -> Caller:
        """Returns who sent a request.

        Raises:
            ApiError: 401 without a known key, 403 for a caller of another machine.
        """
        given = _token(connection)
        if not given:
            found = await self._sessions.find(connection, self._credentials) or await self._forwarded(
                connection
            )
            if found is not None:
                return found
        if self._trusted:
            # A known key limits its caller; another one may be meant for the application around this one.
            known = await self._credentials.find(given) if given else None
            return known or Caller(id="trusted", kind="trusted", grants=_EVERYTHING)
        if await self._credentials.are_required():
            if not given:  # no attempt: a page without a session may ask again and again
                raise _unknown()
            return await self.by_key(connection, given)
        if self._forward is not None:
            raise ApiError(401, "unauthorized", "sign in at the proxy in front of this server")
        _check_local(connection)
        return Caller(id="local", kind="local", grants=_EVERYTHING)

    async def is_still(self, connection: Connection, caller: Caller) -> bool:
        """Returns whether the sender of a request is still the same caller with the same grants.

        While the store is away, the answer is yes.
        """
        try:
            return await self.identify(connection) == caller
        except ApiError:
            return False
        except OxcartError:
            return True

    async def by_key(self, connection: Connection, text: str) -> Caller:
        """Returns the caller with a key or token.

        Raises:
            ApiError: 401 if it is unknown, 429 after too many such attempts from the address.
        """
        found = await self._credentials.find(text) if text else None
        if found is None:
            client = connection.client
            self._failures.take("" if client is None else client.host)
            raise _unknown()
        return found

    async def _forwarded(self, connection: Connection) -> Caller | None:
        if self._forward is None or (user := self._forward.user(connection)) is None:
            return None
        grants = self._forward.grants_of(user)
        if grants is None:
            raise ApiError(403, "forbidden", "the user has no role here")
        csrf = await self._sessions.csrf(f"forward:{user}")
        return Caller(id=user, name=user, kind="forward", grants=grants, csrf=csrf)

    def check_site(self, connection: Connection) -> None:
        """Refuses requests that a page of another site sent.

        Raises:
            ApiError: 403 for such a request.
        """
        origin = connection.headers.get("origin")
        if origin is not None and origin in self._origins:
            return
        site = connection.headers.get("sec-fetch-site")
        if site is None and origin is not None:
            same = urlsplit(origin).netloc == connection.headers.get("host")
            site = "same-origin" if same else "cross-site"
        if site not in (None, "same-origin", "none"):
            raise ApiError(403, "forbidden", "requests of other sites are not served")


def _unknown() -> ApiError:
    return ApiError(401, "unauthorized", "pass a key: Authorization: Bearer … or X-API-Key: …")


async def _check_csrf(connection: Connection, expected: str) -> None:
    given = connection.headers.get(CSRF_HEADER, "")
    if not given and isinstance(connection, Request):
        kind = connection.content_type[0]
        if kind in (RequestEncodingType.URL_ENCODED, RequestEncodingType.MULTI_PART):
            given = str((await connection.form()).get(CSRF_FIELD, ""))
    if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode()):
        message = f"the request needs the session's token in {CSRF_HEADER}; GET /api/v1/session has it"
        raise ApiError(403, "forbidden", message)


def _token(connection: Connection) -> str:
    kind, _, value = connection.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    return connection.headers.get("x-api-key", "")


def _check_local(connection: Connection) -> None:
    """Refuses callers of other machines, and pages of other sites in a local browser.

    A page can send simple requests to any address, and can make a name of its own lead to this machine; the
    first have a foreign ``Origin``, the second a foreign ``Host``.
    """
    client = connection.client
    if client is None or not is_loopback(client.host):
        raise ApiError(403, "forbidden", "without keys only this machine is served")
    host = urlsplit(f"//{connection.headers.get('host', '')}").hostname or ""
    if not is_loopback(host):
        raise ApiError(403, "forbidden", "without keys only requests to localhost are served")
    origin = connection.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != connection.headers.get("host"):
        raise ApiError(403, "forbidden", "requests of other sites are not served")


def is_loopback(host: str) -> bool:
    """Returns whether a host name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
