"""Reads and checks the URL of a server.

Nothing here connects. A `Location` shows its passwords neither in `repr` nor in `str` nor in an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode

from oxcart.model.errors import ValidationError

Kind = Literal["standalone", "unix", "sentinel", "cluster"]

_FORMS = (
    "redis://host:port/db, rediss://… (TLS), unix:///path?db=0, redis+cluster://host:port,host:port "
    "or redis+sentinel://host:port,host:port/master/db"
)
_KINDS: dict[str, Kind] = {"": "standalone", "cluster": "cluster", "sentinel": "sentinel"}
_PORTS: dict[Kind, int] = {"standalone": 6379, "cluster": 6379, "sentinel": 26379}
#: Query names of the TLS options; those of redis-py are understood too.
_TLS_NAMES = {
    "tls_ca": "tls_ca",
    "tls_cert": "tls_cert",
    "tls_key": "tls_key",
    "tls_verify": "tls_verify",
    "ssl_ca_certs": "tls_ca",
    "ssl_certfile": "tls_cert",
    "ssl_keyfile": "tls_key",
    "ssl_cert_reqs": "tls_verify",
}
_YES = ("yes", "true", "1", "required")
_NO = ("no", "false", "0", "none")
#: The kernel's limit for a socket's path without its final NUL (103 on macOS).
_UNIX_PATH_BYTES = 107


@dataclass(frozen=True)
class Location:
    """One server, one cluster, or a group of Sentinels.

    Attributes:
        kind: How to connect.
        hosts: The (host, port) pairs; one for `standalone`, none for `unix`.
        path: The socket of a `unix` location.
        db: The database; always 0 on a cluster.
        username: The ACL user, or None for the default one.
        password: The password, or None.
        tls: Whether to encrypt.
        tls_ca: File with the authorities to trust instead of the system's.
        tls_cert: File with the client's certificate.
        tls_key: File with the client's key.
        tls_verify: Whether to check the server's certificate and host name.
        sentinel_master: The name under which Sentinel knows the server.
        sentinel_username: The ACL user on the Sentinels themselves.
        sentinel_password: The password of the Sentinels themselves.
    """

    kind: Kind
    hosts: tuple[tuple[str, int], ...] = ()
    path: str | None = None
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_verify: bool = True
    sentinel_master: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> Location:
        """Read a URL.

        User names, passwords, the path and the master's name are percent-decoded, so a password with one of
        `@ / ? # %` must be percent-encoded.

        Args:
            url: `redis://[user:password@]host:port/db`, `rediss://` for TLS, `unix:///path?db=0`,
                `redis+cluster://host:port,host:port` or `redis+sentinel://host:port,host:port/master[/db]`;
                `valkey` may be written for `redis`. Further options are query parameters: `db`, `tls_ca`,
                `tls_cert`, `tls_key`, `tls_verify=no`, `sentinel_username`, `sentinel_password`.

        Raises:
            ValidationError: The URL is none of these. The message does not repeat it.
        """
        return _Reader(url).location()

    @property
    def url(self) -> str:
        """The URL that `parse` reads as this location, password included."""
        return self._url(quote(self.password or "", safe=""), quote(self.sentinel_password or "", safe=""))

    def __str__(self) -> str:
        return self._url("***", "***")

    def _url(self, password: str, sentinel_password: str) -> str:
        query: list[tuple[str, str]] = []
        for name in ("tls_ca", "tls_cert", "tls_key", "sentinel_username"):
            if value := getattr(self, name):
                query.append((name, value))
        if not self.tls_verify:
            query.append(("tls_verify", "no"))
        if self.kind == "unix":
            scheme, path = "unix", quote(self.path or "")
            if self.db:
                query.append(("db", str(self.db)))
        else:
            scheme = ("rediss" if self.tls else "redis") + (
                "" if self.kind == "standalone" else f"+{self.kind}"
            )
            path = f"/{quote(self.sentinel_master, safe='')}" if self.sentinel_master else ""
            path += f"/{self.db}" if self.db else ""
        user = quote(self.username or "", safe="") + (f":{password}" if self.password else "")
        hosts = ",".join(
            f"[{quote(host, safe=':')}]:{port}" if ":" in host else f"{host}:{port}"
            for host, port in self.hosts
        )
        options = urlencode(query)
        if self.sentinel_password:
            options += f"{'&' if options else ''}sentinel_password={sentinel_password}"
        return f"{scheme}://{user}{'@' if user else ''}{hosts}{path}{'?' if options else ''}{options}"


def location_from_env(environ: Mapping[str, str] | None = None) -> Location | None:
    """Return the location that `OXCART_URL` names; None when it is unset or empty."""
    url = (os.environ if environ is None else environ).get("OXCART_URL", "").strip()
    return Location.parse(url) if url else None


def is_web_url(given: Mapping[str, Any]) -> bool:
    """Returns whether arguments of a queue lead to an HTTP API: by its URL, or that of `OXCART_URL`."""
    url = given.get("url")
    if url is None and not any(given.get(other) is not None for other in ("folder", "server", "broker")):
        url = os.environ.get("OXCART_URL", "")
    return isinstance(url, str) and url.strip().lower().startswith(("https://", "http://"))


class _Reader:
    """Parses one URL. No error may contain a piece of it that can hold a password."""

    def __init__(self, url: str) -> None:
        if not isinstance(url, str):
            raise ValidationError("url", f"a text like {_FORMS}", type(url).__name__)
        scheme, separator, rest = url.strip().partition("://")
        self._scheme = scheme.lower()
        if not separator or not re.fullmatch(r"[a-z]{1,10}(\+[a-z]{1,10})?", self._scheme):
            raise ValidationError("url", f"like {_FORMS}", "a text without such a scheme")
        if not rest.isprintable() or " " in rest:
            raise self._wrong("url", "without spaces and control characters")
        rest, _, query = rest.partition("?")
        self._query = self._read_query(query)
        authority, slash, path = rest.partition("/")
        self._path = slash + path
        userinfo, _, self._hosts_text = authority.rpartition("@")
        user, _, password = userinfo.partition(":")
        self._login: dict[str, Any] = {
            "username": unquote(user) or None,
            "password": unquote(password) or None,
        }

    def location(self) -> Location:
        if self._scheme == "unix":
            location = Location("unix", path=self._unix_path(), db=self._db(""), **self._login)
        else:
            location = self._network_location()
        if self._query:
            raise self._wrong("url", f"without the parameter {min(self._query)!r}")
        return location

    def _network_location(self) -> Location:
        base, _, form = self._scheme.partition("+")
        if base not in ("redis", "rediss", "valkey", "valkeys") or form not in _KINDS:
            raise self._wrong("url", f"like {_FORMS}")
        kind = _KINDS[form]
        path = self._path[1:]
        options: dict[str, Any] = {"tls": base in ("rediss", "valkeys"), **self._login}
        if kind == "sentinel":
            master, _, path = path.partition("/")
            if not master:
                raise self._wrong("url", "followed by the master's name: redis+sentinel://host:port/master")
            options["sentinel_master"] = unquote(master)
            for name in ("sentinel_username", "sentinel_password"):
                options[name] = self._query.pop(name, None)
        options["db"] = self._db(path)
        if kind == "cluster" and options["db"]:
            raise ValidationError("db", "0 on a cluster", options["db"])
        if options["tls"]:
            options.update(self._tls())
        return Location(kind, hosts=self._hosts(kind), **options)

    def _hosts(self, kind: Kind) -> tuple[tuple[str, int], ...]:
        texts = self._hosts_text.split(",")
        if kind == "standalone" and len(texts) > 1:
            raise self._wrong("url", "of one host; several need redis+cluster:// or redis+sentinel://")
        return tuple(self._host(text, _PORTS[kind]) for text in texts)

    def _host(self, text: str, default_port: int) -> tuple[str, int]:
        match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+(?:%25[\w.-]+)?)\]|([^:\[\]%]*))(?::([0-9]{1,5}))?", text)
        port = int(match[3] or default_port) if match else 0
        if match is None or not 1 <= port <= 65535:
            raise self._wrong("url", "of hosts like name:port or [address]:port, with ports from 1 to 65535")
        return unquote(match[1] or match[2] or "localhost"), port

    def _unix_path(self) -> str:
        path = unquote(self._path)
        if self._hosts_text or len(path) < 2 or "\0" in path:
            raise self._wrong("url", "with an absolute path: unix:///run/valkey.sock")
        size = len(os.fsencode(path))
        if size > _UNIX_PATH_BYTES:
            raise ValidationError("path", f"at most {_UNIX_PATH_BYTES} bytes long for a socket", size)
        return path

    def _db(self, path: str) -> int:
        in_query = self._query.pop("db", "")
        text = path.rstrip("/") or in_query or "0"
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise self._wrong("db", "a number from 0, after the host or as ?db=")
        return int(text)

    def _tls(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        for name in [name for name in self._query if name in _TLS_NAMES]:
            options[_TLS_NAMES[name]] = self._query.pop(name)
        verify = str(options.get("tls_verify", "yes")).lower()
        if verify not in _YES + _NO:
            raise self._wrong("tls_verify", "yes or no")
        options["tls_verify"] = verify in _YES
        if "tls_key" in options and "tls_cert" not in options:
            raise self._wrong("tls_cert", "given together with tls_key")
        return options

    def _read_query(self, text: str) -> dict[str, str]:
        try:
            return dict(parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text)))
        except ValueError:
            raise self._wrong("url", "with parameters like ?name=value&name=value") from None

    def _wrong(self, field: str, bound: str) -> ValidationError:
        return ValidationError(field, bound, f"{self._scheme}://…")
