"""How Spark's processes reach the server: options that may stand in a plan, and none that may not.

Spark shows options in plans, logs and its user interface, and keeps them in files. So no option carries a
secret: what is secret is named by the environment variable that holds it, on the driver and on every
executor. A URL with a password in it is refused.

May touch: the environment; and the server, to read which lanes a queue has.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from oxcart.broker.bullmq.keys import DEFAULT_PREFIX, Keys
from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.discovery import find_queues
from oxcart.broker.location import Location
from oxcart.model.errors import ValidationError
from oxcart.model.target import base_of, parse_lane
from oxcart.spark.wire import Wire

#: How often a server is tried that does not answer.
ATTEMPTS = 3
#: Options that say where the server is.
ACCESS_OPTIONS = ("url", "urlenv", "passwordenv", "folder", "prefix")


@dataclass(frozen=True)
class Access:
    """Where a server is and which prefix its queues have; safe to pickle and to show.

    Attributes:
        url: The server's URL, without a password.
        url_env: The environment variable that holds the URL, password and all.
        password_env: The environment variable that holds the password of ``url``.
        folder: The data folder of an embedded server instead.
        prefix: What stands before queue names in keys.
    """

    url: str | None = None
    url_env: str = "OXCART_URL"
    password_env: str | None = None
    folder: str | None = None
    prefix: str = DEFAULT_PREFIX

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
        """From the options of a source or sink."""
        return cls(
            url=options.get("url") or None,
            url_env=options.get("urlEnv") or "OXCART_URL",
            password_env=options.get("passwordEnv") or None,
            folder=options.get("folder") or None,
            prefix=options.get("prefix") or DEFAULT_PREFIX,
        )

    def options(self) -> dict[str, str]:
        """As options of a source or sink: what `read` reads."""
        told = {
            "url": self.url,
            "urlEnv": self.url_env,
            "passwordEnv": self.password_env,
            "folder": self.folder,
            "prefix": self.prefix,
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

    def keys(self, queue: str, server: Server) -> Keys:
        """The keys of a queue on that server."""
        return Keys(queue, self.prefix, server.is_cluster)


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
        for name in names:
            Keys(name)
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
    if choice.pattern is None:
        found = set(choice.names)
        for name in choice.names:
            keys = access.keys(name, server)
            with Wire(server, keys.slot() if server.is_cluster else None) as wire:
                lanes = wire.call("ZRANGE", keys.lanes(), 0, -1)
            found.update(f"{name}@{lane.decode('utf-8', 'replace')}" for lane in lanes)
        return sorted(found)
    few = Reconnect(attempts=ATTEMPTS)  # whoever runs the pipeline decides how long to wait for a server
    return choice.pick(asyncio.run(find_queues(server, access.prefix, few, lanes=True)))


def check_options(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Refuses an option that nobody reads: it is most often a slip of the pen.

    Raises:
        ValidationError: There is one.
    """
    names = {name.lower() for name in known}
    for name in options:
        if name.lower() not in names:
            raise ValidationError("option", f"one of {', '.join(sorted(known))}", name)


def _unset(option: str, name: str) -> ValidationError:
    return ValidationError(
        option,
        "the name of a variable that is set",
        name,
        f"option {option} names the environment variable {name}, which is not set in this process; set it on "
        "the driver and on every executor",
    )
