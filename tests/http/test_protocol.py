"""How the server reads and writes HTTP: the bound of a request's head, and answers in one piece."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest

from oxcart import Queue
from oxcart.http.application import app
from oxcart.http.protocol import MAX_HEAD
from oxcart.http.server import Server
from tests.http.conftest import Serve

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


@contextlib.asynccontextmanager
async def connection(serve: Serve, queue: Queue) -> AsyncIterator[Streams]:
    client = await serve(queue)
    at = urlsplit(str(client.base_url))
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    try:
        async with asyncio.timeout(30):
            yield reader, writer
    finally:
        writer.close()


async def test_a_small_answer_is_sent_in_one_piece(queue: Queue, serve: Serve) -> None:
    async with connection(serve, queue) as (reader, writer):
        writer.write(GET + b"\r\n")
        answer = await reader.read(65_536)
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b'{"status":"healthy"}')


async def test_requests_of_one_connection_are_answered_in_order(queue: Queue, serve: Serve) -> None:
    async with connection(serve, queue) as (reader, writer):
        writer.write(b"".join(GET + b"x-request-id: n%d\r\n\r\n" % number for number in range(5)))
        answers = b""
        while answers.count(b'{"status":"healthy"}') < 5:
            answers += await reader.read(65_536)
        found = [line[14:] for line in answers.split(b"\r\n") if line.startswith(b"x-request-id: ")]
        assert found == [b"n%d" % number for number in range(5)]


CHUNKED = b"POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n"


@pytest.mark.parametrize(
    "head",
    [
        GET + b"x: " + b"a" * MAX_HEAD + b"\r\n\r\n",
        GET + b"".join(b"x-%d: %s\r\n" % (number, b"a" * 1000) for number in range(70)) + b"\r\n",
        b"GET /" + b"a" * MAX_HEAD + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        # These have no end, and are not kept until there is one.
        GET + b"x: " + b"a" * 8 * MAX_HEAD,
        CHUNKED + b"0\r\n" + b"x-a: b\r\n" * MAX_HEAD,
        CHUNKED + b"0\r\nx: " + b"a" * 8 * MAX_HEAD,
        CHUNKED + b"1;" + b"a" * 8 * MAX_HEAD,
        b"\r\n" * 8 * MAX_HEAD,
    ],
    ids=["header", "headers", "path", "endless", "trailers", "trailer", "extension", "lines"],
)
@pytest.mark.parametrize("piece", [1000, 1 << 20])
async def test_a_long_head_is_refused(queue: Queue, serve: Serve, head: bytes, piece: int) -> None:
    async with connection(serve, queue) as (reader, writer):
        answer = rest = b""
        with contextlib.suppress(ConnectionResetError):  # the server closes while the client still writes
            for start in range(0, len(head), piece):
                writer.write(head[start : start + piece])
                await asyncio.sleep(0)
            answer = await reader.readline()
            rest = await reader.read()
        assert answer.strip() in (b"HTTP/1.1 400 Bad Request", b"")
        if rest:
            error = json.loads(rest.partition(b"\r\n\r\n")[2])["error"]
            assert error["code"] == "invalid_request"
    async with connection(serve, queue) as (reader, writer):
        writer.write(GET + b"\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")


async def test_a_head_within_the_bound_is_read(queue: Queue, serve: Serve) -> None:
    async with connection(serve, queue) as (reader, writer):
        for _ in range(2):  # the bound is that of one request
            writer.write(GET + b"x: " + b"a" * (MAX_HEAD - 1000) + b"\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            await reader.readuntil(b'{"status":"healthy"}')


async def test_a_connection_beyond_the_bound_gets_an_error_of_the_one_shape(queue: Queue) -> None:
    async with Server(app([queue]), grace=1) as server:
        server._server.config.limit_concurrency = 1
        async with httpx.AsyncClient(base_url=server.url) as client:
            answer = await client.get("/health")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["code"] == "unavailable"
