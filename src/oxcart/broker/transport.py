"""Probes the protocol of a port, so that a URL of the wrong scheme raises an error that names the right one.

A plain server waits in silence for the rest of a TLS greeting, and a TLS server ends a plain connection.
Neither reports what is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl

#: Seconds that a port has to answer a probe.
PROBE = 0.5

#: The first byte of a TLS record: an alert, or the server's part of a handshake.
_ALERT, _HANDSHAKE = 0x15, 0x16


async def speaks_plainly(host: str, port: int) -> bool:
    """Returns whether a port answers a Redis command without TLS."""
    return (await _first_byte(host, port, b"PING\r\n")) in (b"+", b"-")


async def speaks_tls(host: str, port: int) -> bool:
    """Returns whether a port answers the beginning of a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent after the greeting
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return (await _first_byte(host, port, outgoing.read())) in (bytes([_ALERT]), bytes([_HANDSHAKE]))


async def _first_byte(host: str, port: int, greeting: bytes) -> bytes:
    try:
        async with asyncio.timeout(PROBE):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(greeting)
                return await reader.read(1)
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return b""
