"""The options of Spark's source and sink: one list of all of them, and what their values may be.

Spark shows options in plans, logs and its user interface, and writes them to files. So no option carries a
secret. An option names the environment variable that holds it, on the driver and on every executor. A URL
with a password is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.factory import PREFIXES, check_place, export_of, make_broker
from oxcart.broker.keyring import KeyRing
from oxcart.broker.location import Location
from oxcart.model.errors import ValidationError
from oxcart.model.target import base_of, parse_lane
from oxcart.spark.read.position import Position

if TYPE_CHECKING:
    from oxcart.broker.export import Export
    from oxcart.broker.port import ServedBroker

#: What an option is for: a table of jobs, a stream of events, a write.
JOBS, EVENT_STREAM, WRITE = "jobs", "events", "write"
_READS, _ALL = (JOBS, EVENT_STREAM), (JOBS, EVENT_STREAM, WRITE)
#: Attempts to reach a server, over about 3 s; then Spark, or the user, decides whether to go on.
ATTEMPTS = 6


@dataclass(frozen=True)
class Option:
    """One option of ``format("oxcart")``.

    Attributes:
        name: Its name.
        uses: What it is for: `JOBS`, `EVENT_STREAM`, `WRITE`.
        default: Its value where it is not given, for people.
        meaning: What it says.
    """

    name: str
    uses: tuple[str, ...]
    default: str
    meaning: str


#: Every option, in the order of the documentation, which repeats them word for word.
OPTIONS = (
    Option("url", _ALL, "", "the server, without a password"),
    Option("urlEnv", _ALL, "`OXCART_URL`", "the environment variable with the whole url"),
    Option("passwordEnv", _ALL, "", "the environment variable with the password of `url`"),
    Option("folder", _ALL, "", "the data folder of an embedded server instead"),
    Option("prefix", _ALL, "`bull`", "the prefix of BullMQ's keys"),
    Option("protocol", _ALL, "`bullmq`", "`bullmq`, or `bridge` for a namespace"),
    Option("namespace", _ALL, "", "the Bridge namespace, of which the job types are the queues"),
    Option("content", _READS, "`jobs`", "`jobs`, the table, or `events`, the stream"),
    Option("queue", _ALL, "", "the queue; of a write the queue of rows without `ox_queue`"),
    Option("queues", _READS, "", "several queues, separated by commas"),
    Option("pattern", _READS, "", "all queues whose name fits, `*` and `?` as in a shell"),
    Option("path", _ALL, "", "the same as `queue`: `load` and `save` set it"),
    Option(
        "startingOffsets",
        (EVENT_STREAM,),
        "`earliest`",
        '`earliest`, `latest`, or positions: `{"mail": {"id": "1700000000000-0", "n": 12}}`',
    ),
    Option("maxRowsPerBatch", (EVENT_STREAM,), "`500000`", "rows of a batch at most"),
    Option("attempts", (EVENT_STREAM,), "`true`", "whether to read attempt records too"),
    Option("samples", (EVENT_STREAM,), "`false`", "whether to sample each queue's lengths every minute"),
    Option("spool", (EVENT_STREAM,), "", "the folder of a tailer's spool, read instead of the server"),
    Option("lake", (EVENT_STREAM,), "", "tasks write events into files of this lake; rows are the files"),
    Option("name", (WRITE,), "", "the job name of rows without `ox_name`"),
    Option("key", (WRITE,), "", "the column that makes a row unique; not needed with `ox_job_id`"),
    Option("quarantine", (WRITE,), "", "the folder for refused rows; without it they fail the write"),
    Option("keysEnv", (WRITE,), "", "the environment variable with the keys that seal payloads"),
    Option("checkpointLocation", (WRITE,), "", "Spark's own, of a stream"),
)
#: Rows per batch that a caller may ask for, at most.
MOST_ROWS = 1_000_000_000

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENTRY_ID = re.compile(r"\d{1,15}-\d{1,19}")


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
    prefix: str = PREFIXES["bullmq"]
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
            prefix=place if protocol == "bullmq" else PREFIXES["bullmq"],
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


def check_options(options: Mapping[str, str], use: str) -> None:
    """Refuses unknown options, options of another use, and values that no server is needed to refuse.

    Args:
        options: The options.
        use: What they are for: `JOBS`, `EVENT_STREAM` or `WRITE`.

    Raises:
        ValidationError: An option is unknown, of another use, or has a wrong value.
    """
    known = {option.name.lower(): option for option in OPTIONS}
    for name, value in options.items():
        option = known.get(name.lower())
        if option is None:
            names = sorted(option.name for option in OPTIONS if use in option.uses)
            raise ValidationError("option", f"one of {', '.join(names)}", name)
        if use not in option.uses:
            raise ValidationError(
                option.name,
                f"left out of {_USES[use]}",
                value,
                f"option {option.name} must be left out of {_USES[use]}: it belongs to "
                f"{' and '.join(_USES[one] for one in option.uses)}",
            )
        check = _CHECKS.get(option.name)
        if check is not None and value:
            check(value, option.name)


_USES = {JOBS: "a table of jobs", EVENT_STREAM: "a stream of events", WRITE: "a write"}


def read_flag(text: str, name: str) -> bool:
    """Reads ``true`` or ``false``.

    Raises:
        ValidationError: It is neither.
    """
    if text.lower() not in ("true", "false"):
        raise ValidationError(name, "true or false", text)
    return text.lower() == "true"


def read_count(text: str, name: str) -> int:
    """Reads a number of rows.

    Raises:
        ValidationError: It is no whole number, or outside its bounds.
    """
    if not re.fullmatch(r"[0-9]{1,12}", text) or not 1 <= int(text) <= MOST_ROWS:
        raise ValidationError(name, f"a whole number from 1 to {MOST_ROWS}", text)
    return int(text)


def check_starting_offsets(text: str, name: str = "startingOffsets") -> None:
    """Refuses offsets that are neither a word nor positions.

    Raises:
        ValidationError: It is neither ``earliest``, ``latest`` nor JSON with a position per stream.
    """
    if text in ("earliest", "latest"):
        return
    form = """earliest, latest, or JSON such as {"mail": {"id": "1700000000000-0", "n": 12}}"""
    try:
        found = msgspec.json.decode(text, type=dict[str, Position])
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValidationError(
            name, form, text, f"{name} must be {form}, got {text[:100]!r}: {error}"
        ) from error
    for key, at in found.items():
        if not key or not _ENTRY_ID.fullmatch(at.id) or at.n < 0 or at.life < 0 or at.minute < 0:
            raise ValidationError(
                name, form, text, f"{name} has a malformed position of {key!r}: id {at.id!r}, n {at.n}"
            )


def _check_variable(text: str, name: str) -> None:
    if not _VARIABLE.fullmatch(text):
        raise ValidationError(name, "the name of an environment variable", text)


def _check_pattern(text: str, name: str) -> None:
    if ":" in text:  # no queue's name has one, so it would find nothing without saying so
        raise ValidationError(name, "without a colon", text)


def _check_folder(text: str, name: str) -> None:
    if Path(text).exists() and not Path(text).is_dir():
        raise ValidationError(name, "a folder", text)


_CHECKS: Mapping[str, Callable[[str, str], Any]] = {
    "urlEnv": _check_variable,
    "passwordEnv": _check_variable,
    "keysEnv": _check_variable,
    "folder": _check_folder,
    "spool": _check_folder,
    "lake": _check_folder,
    "quarantine": _check_folder,
    "pattern": _check_pattern,
    "startingOffsets": check_starting_offsets,
    "maxRowsPerBatch": read_count,
    "attempts": read_flag,
    "samples": read_flag,
}


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
