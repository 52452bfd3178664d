"""Finds the server of a ``connection`` option of PyPI's package: a URL, a dict, or a client of redis-py.

The default is ``OXCART_URL``, and without that ``localhost:6379``, as in that package: a program that
migrates has a server. Given clients are only read; no connection is made with them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from oxcart.broker.connection import Server
from oxcart.broker.location import Location, location_from_env
from oxcart.model.errors import MissingExtra, ValidationError

#: Parameters of redis-py's URLs that locate the server; others concern its own pool.
_WHERE = ("db", "ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_keyfile")
#: The same for arguments of its constructor.
_PLACE = ("db", "host", "password", "port", "ssl", "unix_socket_path", "username", *_WHERE[1:])
#: Arguments of its constructor about the connection itself, which our connection handles in its own way.
_OWN_WAYS = (
    *(
        "client",
        "credential_provider",
        "decode_responses",
        "driver_info",
        "encoding",
        "health",
        "lib",
        "max_",
    ),
    *(
        "legacy_responses",
        "maint",
        "oss_",
        "parser",
        "protocol",
        "redis_connect",
        "retry",
        "single",
        "socket",
    ),
    *("ssl_check_hostname", "ssl_ciphers", "ssl_min_version", "auto_close", "from_url", "event", "cache"),
)


def server_of(connection: Any) -> Server:
    """Returns the server of a ``connection`` option.

    Raises:
        ValidationError: It is neither a URL nor a dict nor a client of redis-py.
    """
    if connection is None or connection == {}:
        known = location_from_env()
        return Server(known.url if known else "redis://localhost:6379")
    if isinstance(connection, Server):
        return connection
    if isinstance(connection, str):
        return Server(_plain_url(connection))
    if isinstance(connection, Mapping):
        return Server(_of_mapping(connection).url)
    if hasattr(connection, "connection_pool"):
        return Server(_of_pool(connection.connection_pool).url)
    if hasattr(connection, "nodes_manager"):
        return Server(_of_cluster(connection).url)
    raise ValidationError(
        "connection", "a URL, a dict or a client of redis.asyncio", type(connection).__name__
    )


def _plain_url(url: str) -> str:
    head, mark, query = url.partition("?")
    if not mark:
        return url
    kept = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name in _WHERE]
    return f"{head}?{urlencode(kept)}" if kept else head


def _of_mapping(given: Mapping[str, Any]) -> Location:
    strange = sorted(name for name in given if name not in _PLACE and not name.startswith(_OWN_WAYS))
    if strange:
        raise ValidationError("connection", f"made of {', '.join(_PLACE)}", strange)
    return _located(given)


def _located(given: Mapping[str, Any], *, tls: bool = False) -> Location:
    def text(name: str) -> str | None:
        value = given.get(name)
        return None if value is None or value == "" else str(value)

    path = text("unix_socket_path") or text("path")
    login: dict[str, Any] = {"username": text("username"), "password": text("password")}
    db = int(given.get("db") or 0)
    if path is not None:
        return Location("unix", path=path, db=db, **login)
    return Location(
        "standalone",
        hosts=((text("host") or "localhost", int(given.get("port") or 6379)),),
        db=db,
        **login,
        **_tls(given, tls or bool(given.get("ssl"))),
    )


def _tls(given: Mapping[str, Any], tls: bool) -> dict[str, Any]:
    if not tls:
        return {}
    required = given.get("ssl_cert_reqs", "required")
    return {
        "tls": True,
        "tls_ca": given.get("ssl_ca_certs"),
        "tls_cert": given.get("ssl_certfile"),
        "tls_key": given.get("ssl_keyfile"),
        "tls_verify": str(getattr(required, "name", required)).lower() not in ("none", "cert_none"),
    }


def _of_pool(pool: Any) -> Location:
    """Returns the location that a client's connections go to."""
    given = dict(pool.connection_kwargs)
    kind = getattr(pool, "connection_class", None)
    tls = "SSL" in getattr(kind, "__name__", "")
    manager = getattr(pool, "sentinel_manager", None)
    if manager is None:
        return _located(given, tls=tls)
    hosts = []
    asked: Mapping[str, Any] = {}
    for sentinel in manager.sentinels:
        asked = sentinel.connection_pool.connection_kwargs
        hosts.append((str(asked.get("host", "localhost")), int(asked.get("port", 26379))))
    return Location(
        "sentinel",
        hosts=tuple(hosts),
        db=int(given.get("db") or 0),
        username=given.get("username"),
        password=given.get("password"),
        sentinel_master=pool.service_name,
        sentinel_username=asked.get("username"),
        sentinel_password=asked.get("password"),
        **_tls(given, tls),
    )


def _of_cluster(client: Any) -> Location:
    nodes = client.nodes_manager.startup_nodes.values()
    given = getattr(client, "connection_kwargs", None) or client.nodes_manager.connection_kwargs
    return Location(
        "cluster",
        hosts=tuple((str(node.host), int(node.port)) for node in nodes),
        username=given.get("username"),
        password=given.get("password"),
        **_tls(given, bool(given.get("ssl"))),
    )


def client_of(connection: Any, server: Server) -> Any:
    """Returns a client of redis-py for the same server, for programs that read keys themselves."""
    if hasattr(connection, "connection_pool") or hasattr(connection, "nodes_manager"):
        return connection
    try:
        import redis.asyncio as redis
    except ImportError as error:
        raise MissingExtra("the attribute `client`", "redis") from error
    location = server.location
    assert location is not None
    if location.kind == "cluster":
        from redis.asyncio.cluster import ClusterNode, RedisCluster

        found = [ClusterNode(host, port) for host, port in location.hosts]
        return RedisCluster(startup_nodes=found, decode_responses=True)
    if location.kind == "sentinel":
        raise ValidationError("connection", "a client of your own for `client` with Sentinel", str(location))
    if location.kind == "unix":
        path = f"unix://{quote(location.path or '')}?db={location.db}"
        return redis.from_url(
            path, username=location.username, password=location.password, decode_responses=True
        )
    return redis.from_url(_redis_url(location), decode_responses=True)


def _redis_url(location: Location) -> str:
    """Returns the location as a URL of redis-py."""
    names = {"tls_ca": "ssl_ca_certs", "tls_cert": "ssl_certfile", "tls_key": "ssl_keyfile"}
    head, mark, query = location.url.partition("?")
    renamed = [(names.get(name, name), value) for name, value in parse_qsl(query) if name != "tls_verify"]
    if not location.tls_verify:
        renamed.append(("ssl_cert_reqs", "none"))
    return f"{head}?{urlencode(renamed)}" if mark and renamed else head


def check_backend(opts: Mapping[str, Any]) -> None:
    """Refuses a backend that we lack: queues in PostgreSQL.

    Raises:
        ValidationError: The options name a backend other than Redis.
    """
    backend = opts.get("backend")
    if backend not in (None, "redis"):
        raise ValidationError("backend", "redis", backend)
    if opts.get("skipWaitingForReady"):
        warnings.warn("skipWaitingForReady has no effect", DeprecationWarning, stacklevel=4)
