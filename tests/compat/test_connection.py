"""The server of the drop-in's queues: by URL, by dict, by a redis-py client, and by default."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.sentinel import Sentinel

from oxcart.compat.bullmq import FlowProducer, Queue, QueueEvents, QueueEventsProducer
from oxcart.compat.bullmq.redis_connection import server_of
from oxcart.model.errors import ValidationError
from tests.compat.conftest import Make
from tests.servers import ValkeyServer

SENTINEL = Sentinel(  # type: ignore[no-untyped-call]
    [("s", 1), ("t", 2)], sentinel_kwargs={"password": "sp"}
)


def place(connection: Any) -> str:
    location = server_of(connection).location
    assert location is not None
    return location.url


@pytest.mark.parametrize(
    ("connection", "url"),
    [
        ("redis://h:7000/2", "redis://h:7000/2"),
        ("redis://u:p%40@h", "redis://u:p%40@h:6379"),
        ("redis://h:1/0?socket_timeout=5&protocol=3", "redis://h:1"),
        ("redis://h:1?db=3&max_connections=9", "redis://h:1/3"),
        ("rediss://h:1?ssl_cert_reqs=none", "rediss://h:1?tls_verify=no"),
        ("unix:///run/v.sock?db=1", "unix:///run/v.sock?db=1"),
        ({"host": "h"}, "redis://h:6379"),
        ({"port": 7000, "db": 2}, "redis://localhost:7000/2"),
        ({"host": "h", "username": "u", "password": "p@"}, "redis://u:p%40@h:6379"),
        ({"host": "h", "password": "p", "socket_timeout": 5, "decode_responses": True}, "redis://:p@h:6379"),
        ({"unix_socket_path": "/run/v.sock"}, "unix:///run/v.sock"),
        (
            {"host": "h", "ssl": True, "ssl_ca_certs": "/ca.pem", "ssl_cert_reqs": ssl.CERT_NONE},
            "rediss://h:6379?tls_ca=%2Fca.pem&tls_verify=no",
        ),
        (Redis(host="h", port=5, db=1, password="p"), "redis://:p@h:5/1"),
        (Redis.from_url("rediss://u:p@h:5"), "rediss://u:p@h:5"),
        (Redis(unix_socket_path="/run/v.sock"), "unix:///run/v.sock"),
        (
            RedisCluster(startup_nodes=[ClusterNode("a", 1), ClusterNode("b", 2)], password="p"),
            "redis+cluster://:p@a:1,b:2",
        ),
        (
            SENTINEL.master_for("main", db=3),
            "redis+sentinel://s:1,t:2/main/3?sentinel_password=sp",
        ),
    ],
)
def test_a_connection_names_the_server(connection: Any, url: str) -> None:
    assert place(connection) == url


def test_default_connection_is_the_environment_or_the_usual_port(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place(None) == place({}) == "redis://localhost:6379"
    monkeypatch.setenv("OXCART_URL", "redis://elsewhere:1")
    assert place(None) == "redis://elsewhere:1"


@pytest.mark.parametrize(
    "connection", [5, ["redis://h"], {"hots": "h"}, "localhost:6379", {"host": "h", "ssl": True, "tls": 1}]
)
def test_invalid_connections_are_refused(connection: Any) -> None:
    with pytest.raises(ValidationError):
        server_of(connection)


def test_a_password_is_not_in_the_error() -> None:
    with pytest.raises(ValidationError) as caught:
        server_of({"hots": "h", "password": "secret"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("way", ["url", "dict", "client"])
async def test_every_form_of_connection_works(
    valkey: ValkeyServer, url: str, client: Redis, way: str
) -> None:
    ways: dict[str, Any] = {"url": url, "dict": {"host": "127.0.0.1", "port": valkey.port}, "client": client}
    queue = Queue("q", {"connection": ways[way]})
    job = await queue.add("a", {})
    assert job.id == "1"
    assert await queue.client.exists("bull:q:1") == 1
    await queue.close()
    if way == "client":
        assert await client.ping()  # it is not ours to close


async def test_a_producer_takes_a_connection_or_options(url: str) -> None:
    for producer, prefix in (
        (FlowProducer(url), "bull"),
        (FlowProducer({"connection": url, "prefix": "p"}), "p"),
        (FlowProducer(url, {"prefix": "p"}), "p"),
    ):
        assert producer.prefix == prefix
        tree = await producer.add({"name": "a", "queueName": "q"})
        assert tree["job"].queueQualifiedName == f"{prefix}:q"
        await producer.close()


async def test_the_queue_shows_its_server(make: Make, url: str) -> None:
    events = make(QueueEvents, "q", autorun=False)
    producer = QueueEventsProducer("q", {"connection": url})
    assert events.qualifiedName == producer.qualifiedName == "bull:q"
    await producer.close()


async def test_a_cluster_gives_the_queue_a_tag() -> None:
    queue = Queue("q", {"connection": "redis+cluster://h:1"})
    assert queue.qualifiedName == "bull:{q}"
    assert queue.keys["wait"] == "bull:{q}:wait"


def test_an_option_without_effect_warns(url: str) -> None:
    with pytest.warns(DeprecationWarning, match="skipWaitingForReady"):
        Queue("q", {"connection": url, "skipWaitingForReady": True})
