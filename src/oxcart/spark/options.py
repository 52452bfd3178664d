"""The options of Spark's source and sink: where the server is, and which queues are meant.

Spark shows options in plans, logs and its user interface, and writes them to files. So no option carries a
secret. An option names the environment variable that holds it, on the driver and on every executor. A URL
with a password is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from oxcart.broker.bullmq.keys import DEFAULT_PREFIX
from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.factory import check_place, export_of, make_broker
from oxcart.broker.keyring import KeyRing
from oxcart.broker.location import Location
from oxcart.model.errors import ValidationError
from oxcart.model.target import base_of, parse_lane

if TYPE_CHECKING:
    from oxcart.broker.export import Export
    from oxcart.broker.port import ServedBroker

#: Options that say where the server is, and where its queues are.
ADDRESS_OPTIONS = ("url", "urlEnv", "passwordEnv", "folder", "prefix", "protocol", "namespace")
#: Attempts to reach a server, over about 3 s; then Spark, or the user, decides whether to go on.
ATTEMPTS = 6


@dataclass(frozen=True)
class ServerAddress:
    """Where a server is, and which prefix its queues have; safe to pickle and to show.

    Attributes:
        url: The server's URL, without a password.
        url_env: The environment variable that holds the URL with its password.
        password_env: The environment variable that holds the password of ``url``.
        folder: The data folder of an embedded server instead.
        prefix: The prefix of BullMQ's keys.
        namespace: The Bridge namespace whose job types are read, instead of BullMQ's queues.
    """

    url: str | None = None
    url_env: str = "OXCART_URL"
    password_env: str | None = None
    folder: str | None = None
    prefix: str = DEFAULT_PREFIX
    namespace: str | None = None

    def __post_init__(self) -> None:
        if self.url is not None:
            location = Location.parse(self.url)
            if location.password or location.sentinel_password:
                raise ValidationError(
                    "url",
                    "without a password",
                    str(location),
                    "option url must be without a password, because Spark shows options: put the whole url "
                    "into an environment variable and name it by urlEnv, or the password alone and name it "
                    "by passwordEnv",
                )

    @classmethod
    def read(cls, options: Mapping[str, str]) -> ServerAddress:
        """Reads the options of a source or sink.

        Raises:
            ValidationError: An option is malformed, or does not go with the protocol.
        """
        protocol = options.get("protocol") or "bullmq"
        place = check_place(protocol, "any", options.get("prefix") or None, options.get("namespace") or None)
        return cls(
            url=options.get("url") or None,
            url_env=options.get("urlEnv") or "OXCART_URL",
            password_env=options.get("passwordEnv") or None,
            folder=options.get("folder") or None,
            prefix=place if protocol == "bullmq" else DEFAULT_PREFIX,
            namespace=place if protocol == "bridge" else None,
        )

    def options(self) -> dict[str, str]:
        """Returns the options that `read` reads."""
        given = {
            "url": self.url,
            "urlEnv": self.url_env,
            "passwordEnv": self.password_env,
            "folder": self.folder,
            "prefix": self.prefix if self.namespace is None else None,
            "protocol": None if self.namespace is None else "bridge",
            "namespace": self.namespace,
        }
        return {name: value for name, value in given.items() if value}

    def server(self, environ: Mapping[str, str] | None = None) -> Server:
        """Returns the server, with its secrets from the environment of this process.

        Raises:
            ValidationError: A named variable is not set here.
        """
        environ = os.environ if environ is None else environ
        if self.folder is not None:
            return Server(folder=self.folder)
        if self.url is None:
            url = environ.get(self.url_env, "").strip()
            if not url and self.url_env != "OXCART_URL":
                raise _unset("urlEnv", self.url_env)
            return Server(url) if url else Server()
        location = Location.parse(self.url)
        if self.password_env is not None:
            password = environ.get(self.password_env)
            if password is None:
                raise _unset("passwordEnv", self.password_env)
            location = replace(location, password=password)
        return Server(location.url)

    @property
    def protocol(self) -> str:
        """The protocol of its queues."""
        return "bullmq" if self.namespace is None else "bridge"

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The streams of a queue, its events first."""
        return export_of(self.protocol).suffixes

    def check(self, queue: str) -> None:
        """Refuses what cannot be a queue's name.

        Raises:
            ValidationError: It cannot.
        """
        prefix = self.prefix if self.namespace is None else None
        check_place(self.protocol, queue, prefix, self.namespace)

    def export(self, server: Server) -> Export:
        """Returns the streams and job records of its queues on that server."""
        return export_of(self.protocol)(server, self.namespace or self.prefix, Reconnect(attempts=ATTEMPTS))

    def broker(self, server: Server, queue: str, key_ring: KeyRing | None = None) -> ServedBroker:
        """Returns the broker that adds jobs to a queue."""
        return make_broker(
            self.protocol,
            server,
            queue,
            prefix=self.namespace or self.prefix,
            reconnect=Reconnect(attempts=ATTEMPTS),
            key_ring=key_ring,
        )


@dataclass(frozen=True)
class QueueSelection:
    """Which queues of a server.

    Attributes:
        names: Queues by name.
        pattern: All queues whose name fits, ``*`` and ``?`` as in a shell; None for ``names`` alone.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> QueueSelection:
        """Reads the options ``queue``, ``queues`` (separated by commas) and ``pattern``.

        Raises:
            ValidationError: None of them is given.
        """
        text = options.get("queues") or options.get("queue") or options.get("path") or ""
        # The name of a lane may contain commas.
        parts = [text] if parse_lane(text) is not None else text.split(",")
        names = tuple(dict.fromkeys(name.strip() for name in parts if name.strip()))
        pattern = options.get("pattern") or None
        if not names and pattern is None:
            raise ValidationError(
                "queues",
                "given",
                None,
                "say which queues: option queue, queues ('a,b') or pattern ('mail-*')",
            )
        address = ServerAddress.read(options)
        for name in names:
            address.check(name)
        return cls(names, pattern)

    def pick(self, found: list[str]) -> list[str]:
        """Returns the selected ones of these queues and lanes, and all that are selected by name."""
        fitting = [
            name
            for name in found
            if base_of(name) in self.names
            or (self.pattern is not None and fnmatchcase(base_of(name), self.pattern))
        ]
        return sorted({*self.names, *fitting})


def check_options(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Refuses an unknown option: it is most often a typing error.

    Raises:
        ValidationError: There is one.
    """
    names = {name.lower() for name in known}
    for name in options:
        if name.lower() not in names:
            raise ValidationError("option", f"one of {', '.join(sorted(known))}", name)


def read_keys(variable: str | None) -> KeyRing | None:
    """Returns the keys in an environment variable of this process; None where none is named.

    Raises:
        ValidationError: The variable is not set here.
    """
    if variable is None:
        return None
    ring = KeyRing.from_env(variable)
    if ring is None:
        raise _unset("keysEnv", variable)
    return ring


def _unset(option: str, name: str) -> ValidationError:
    return ValidationError(
        option,
        "the name of a variable that is set",
        name,
        f"option {option} names the environment variable {name}, which is not set in this process; set it on "
        "the driver and on every executor",
    )
