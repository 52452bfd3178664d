"""How Spark's processes reach the server: options that may stand in a plan, and none that may not.

Spark shows options in plans, logs and its user interface, and keeps them in files. So no option carries a
secret: what is secret is named by the environment variable that holds it, on the driver and on every
executor. A URL with a password in it is refused.

May touch: the environment; and the server, to read which lanes a queue has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from oxcart.broker.bullmq.keys import DEFAULT_PREFIX
from oxcart.broker.connection import Server
from oxcart.broker.factory import check_place
from oxcart.broker.keyring import KeyRing
from oxcart.broker.location import Location
from oxcart.model.errors import ValidationError
from oxcart.model.target import base_of, parse_lane
from oxcart.spark.layout import BridgeLayout, BullMQLayout, Layout

#: Options that say where the server is, and which queues of it are meant.
ACCESS_OPTIONS = ("url", "urlEnv", "passwordEnv", "folder", "prefix", "protocol", "namespace")


@dataclass(frozen=True)
class Access:
    """Where a server is and which prefix its queues have; safe to pickle and to show.

    Attributes:
        url: The server's URL, without a password.
        url_env: The environment variable that holds the URL, password and all.
        password_env: The environment variable that holds the password of ``url``.
        folder: The data folder of an embedded server instead.
        prefix: What stands before queue names in keys.
        namespace: The Bridge namespace whose job types are meant, in place of BullMQ's queues.
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
    def read(cls, options: Mapping[str, str]) -> Access:
        """From the options of a source or sink.

        Raises:
            ValidationError: One of them cannot be, or does not go with the protocol.
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
        """As options of a source or sink: what `read` reads."""
        told = {
            "url": self.url,
            "urlEnv": self.url_env,
            "passwordEnv": self.password_env,
            "folder": self.folder,
            "prefix": self.prefix if self.namespace is None else None,
            "protocol": None if self.namespace is None else "bridge",
            "namespace": self.namespace,
        }
        return {name: value for name, value in told.items() if value}

    def server(self, environ: Mapping[str, str] | None = None) -> Server:
        """The server, with what is secret taken from the environment of this process.

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

    def layout(self, server: Server | None = None) -> Layout:
        """Where things lie on that server."""
        tagged = server is not None and server.is_cluster
        if self.namespace is not None:
            return BridgeLayout(self.namespace, tagged)
        return BullMQLayout(self.prefix, tagged)


@dataclass(frozen=True)
class Choice:
    """Which queues.

    Attributes:
        names: These, by name.
        pattern: All whose name fits, ``*`` and ``?`` as in a shell; None for none but ``names``.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> Choice:
        """From the options ``queue``, ``queues`` (with commas between) and ``pattern``.

        Raises:
            ValidationError: None of them is given.
        """
        text = options.get("queues") or options.get("queue") or options.get("path") or ""
        # The name of a lane may have commas of its own.
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
        layout = Access.read(options).layout()
        for name in names:
            layout.check(name)
        return cls(names, pattern)

    def pick(self, found: list[str]) -> list[str]:
        """The chosen ones of those that were found, and all that are named; lanes go with their queues."""
        fitting = [
            name
            for name in found
            if base_of(name) in self.names
            or (self.pattern is not None and fnmatchcase(base_of(name), self.pattern))
        ]
        return sorted({*self.names, *fitting})


def chosen(access: Access, choice: Choice, server: Server) -> list[str]:
    """The queues of a choice with their lanes, by the names of their streams."""
    pick = None if choice.pattern is None else choice.pick
    return access.layout(server).queues(server, choice.names, pick)


def check_options(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Refuses an option that nobody reads: it is most often a slip of the pen.

    Raises:
        ValidationError: There is one.
    """
    names = {name.lower() for name in known}
    for name in options:
        if name.lower() not in names:
            raise ValidationError("option", f"one of {', '.join(sorted(known))}", name)


def read_keys(variable: str | None) -> KeyRing | None:
    """The keys in an environment variable of this process; None where none is named.

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
