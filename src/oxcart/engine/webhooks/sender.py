"""Signs and sends webhooks.

A webhook is a POST of JSON, signed with HMAC-SHA256 over timestamp and body:

    Oxcart-Delivery: <id; the same for every attempt>
    Oxcart-Timestamp: <seconds since 1970>
    Oxcart-Signature: v1=<hex of HMAC-SHA256(secret, "<timestamp>.<body>")>

It goes to public addresses only (``broker/addresses.py``), redirects included, and has ten seconds in all.
Needs the package ``httpx`` (``pip install 'oxcart[webhooks]'``).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import msgspec

from oxcart.broker.addresses import AddressBlocked, Resolve, choose_address, read_networks, resolve
from oxcart.model.errors import MissingExtra, ValidationError
from oxcart.model.failure import PermanentError, TemporaryError

if TYPE_CHECKING:
    from oxcart.engine.tracing import Tracing

#: Seconds that one attempt has, redirects included.
LIMIT = 10.0
#: Redirects that are followed.
MOST_REDIRECTS = 3
#: Bytes of JSON above which a result is left out.
LARGEST_RESULT = 65_536
#: Bytes of a response that are read at most.
LARGEST_ANSWER = 65_536

_REDIRECTS = frozenset({301, 302, 307, 308})
_PASSING = frozenset({408, 425, 429})
_json = msgspec.json.Encoder()


class Delivery(msgspec.Struct, kw_only=True):
    """The payload of a job that sends a webhook.

    Attributes:
        url: The receiver.
        delivery_id: The same for every attempt.
        body: The JSON object that is sent.
    """

    url: str
    delivery_id: str
    body: dict[str, Any]


class Webhooks:
    """How the webhooks of a queue are signed and sent.

    Args:
        secret: The key of the signatures; at least 16 bytes.
        allow: Networks that are allowed although they are not public, e.g. ``["10.1.0.0/16"]``.
        attempts: How often a webhook is tried.
        ask: Resolves host names; tests replace it.
        clock: Seconds since 1970; tests replace it.

    Raises:
        ValidationError: The secret is too short, or a network cannot be parsed.
        MissingExtra: The package ``httpx`` is not installed.
    """

    def __init__(
        self,
        secret: str | bytes,
        *,
        allow: Sequence[str] = (),
        attempts: int = 8,
        ask: Resolve = resolve,
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra("webhooks", "webhooks") from error
        self._httpx = httpx
        self._secret = secret.encode() if isinstance(secret, str) else secret
        if not isinstance(self._secret, bytes) or len(self._secret) < 16:
            raise ValidationError("secret", "at least 16 bytes", "a shorter one")
        self.allow = read_networks(allow)
        self.attempts = attempts
        self._ask = ask
        self._clock = clock

    def __repr__(self) -> str:
        return f"Webhooks(allow={[str(each) for each in self.allow]})"

    def sign(self, timestamp: str, body: bytes) -> str:
        """Returns the value of the header ``Oxcart-Signature``."""
        made = hmac.new(self._secret, timestamp.encode() + b"." + body, hashlib.sha256)
        return f"v1={made.hexdigest()}"

    async def deliver(self, delivery: Delivery, tracing: Tracing | None = None) -> int:
        """Sends a webhook; returns the status code of the response.

        Args:
            delivery: The webhook.
            tracing: Traces each request, and lets the receiver continue the trace.

        Raises:
            TemporaryError: A later attempt may succeed.
            PermanentError: The receiver refuses it.
        """
        try:
            async with asyncio.timeout(LIMIT):
                return await self._send(delivery, tracing)
        except TimeoutError:
            raise TemporaryError(f"no answer within {LIMIT:g} s") from None
        except AddressBlocked as error:
            raise TemporaryError(str(error), error) from error  # tried again: names may change
        except (OSError, self._httpx.HTTPError) as error:
            raise TemporaryError(f"{type(error).__name__}: {error}", error) from error

    async def _send(self, delivery: Delivery, tracing: Tracing | None) -> int:
        body = _json.encode(delivery.body)
        url = delivery.url
        for _ in range(MOST_REDIRECTS + 1):
            if tracing is None:
                status, headers = await self._post(url, delivery, body, {})
            else:
                with tracing.post(url) as span:
                    status, headers = await self._post(url, delivery, body, span.headers)
                    span.answered(status)
            if status in _REDIRECTS and headers.get("location"):
                url = urljoin(url, headers["location"])
                if urlsplit(url).scheme not in ("http", "https"):
                    raise PermanentError("redirected to something that is not HTTP", code="redirect")
                continue
            if 200 <= status < 300:
                return status
            if status in _PASSING or status >= 500:
                after = headers.get("retry-after", "")
                raise TemporaryError(
                    f"answered {status}", retry_after=min(int(after), 3600) if after.isdigit() else None
                )
            raise PermanentError(f"answered {status}", code=f"http_{status}")
        raise PermanentError(f"more than {MOST_REDIRECTS} redirects", code="redirect")

    async def _post(
        self, url: str, delivery: Delivery, body: bytes, context: Mapping[str, str]
    ) -> tuple[int, Any]:
        parts = urlsplit(url)
        host, secure = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        address = await choose_address(host, port, self.allow, self._ask)
        # To the address that was checked: the name may resolve to another one by now.
        there = f"[{address}]" if ":" in address else address
        target = (
            f"{parts.scheme}://{there}:{port}{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        )
        timestamp = str(int(self._clock()))
        headers = {
            **context,
            "Host": host if parts.port is None else f"{host}:{parts.port}",
            "Content-Type": "application/json",
            "User-Agent": "oxcart-webhooks",
            "Oxcart-Delivery": delivery.delivery_id,
            "Oxcart-Timestamp": timestamp,
            "Oxcart-Signature": self.sign(timestamp, body),
        }
        correlation = delivery.body.get("correlation_id")
        if correlation and correlation.isascii():
            headers["Oxcart-Correlation-Id"] = correlation
        extensions = {"sni_hostname": host} if secure else {}
        async with (
            self._httpx.AsyncClient(timeout=LIMIT, follow_redirects=False, trust_env=False) as client,
            client.stream("POST", target, content=body, headers=headers, extensions=extensions) as answer,
        ):
            read = 0
            async for chunk in answer.aiter_raw():  # so that the connection closes cleanly
                read += len(chunk)
                if read > LARGEST_ANSWER:
                    break
            return answer.status_code, answer.headers
