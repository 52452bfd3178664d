"""Which server a queue lives on: a URL, or the embedded Valkey; and who its master is right now.

``Server`` answers one question, ``endpoint(slot)``, anew for every connection: the address of the process
that owns a slot at this moment. For the embedded server that may mean to start it, for Sentinel to ask
the sentinels, for a cluster to read its slot map. The reconnect policy lives here too.

May touch: sockets, and through ``embedded`` processes and files.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oxcart.broker.embedded import Embedded, data_folder
from oxcart.broker.link import DENIALS, Endpoint, Link, ReplyError
from oxcart.broker.location import Location, location_from_env
from oxcart.model.errors import AccessDenied, BrokerUnavailable, ValidationError

#: While an outage is young no pause is longer than this many seconds; with the pauses of `Reconnect` so many
#: attempts take more than ten seconds.
YOUNG_PAUSE = 4.0
YOUNG_ATTEMPTS = 8

#: Seconds that one sentinel or node has to tell where the master is. Less than a link has to connect in all,
#: so that one that is dead without a word does not hide the others.
ASK_TIMEOUT = 1.5


@dataclass(frozen=True, slots=True)
class Reconnect:
    """How long to wait between attempts to reach a lost server.

    Attributes:
        initial: Seconds before the second attempt; doubled each time.
        held: The longest pause while leases or outcomes are held: somebody waits for them.
        idle: The longest pause otherwise, once the outage has lasted: the first ten seconds see none of
            more than four, so that whoever is idle is back within five after a short outage.
        jitter: Each pause varies by this part, so that a fleet does not knock in step.
        attempts: Give up after so many, or never.
    """

    initial: float = 0.1
    held: float = 2.0
    idle: float = 30.0
    jitter: float = 0.2
    attempts: int | None = None

    def pause(self, attempt: int, *, holding: bool, rand: Callable[[], float] = random.random) -> float:
        """Seconds to wait after the given failed attempt (the first is 1)."""
        longest = self.held if holding else self.idle
        if attempt <= YOUNG_ATTEMPTS:
            longest = min(longest, YOUNG_PAUSE)
        pause = min(self.initial * 2.0 ** min(attempt - 1, 30), longest)
        return pause * (1 - self.jitter + 2 * self.jitter * rand())


class Server:
    """A server, a Sentinel group, a cluster or the embedded Valkey.

    Args:
        url: Where it is; without one ``OXCART_URL``, and without that the embedded server.
        folder: The embedded server's data folder, instead of the project's ``.oxcart``.
    """

    def __init__(self, url: str | None = None, *, folder: str | Path | None = None) -> None:
        location = Location.parse(url) if url else None if folder else location_from_env()
        self.location = location
        self._embedded = None if location else Embedded(Path(folder) if folder else data_folder())
        self._slots: list[tuple[int, int, str, int]] = []
        self._nodes: tuple[tuple[str, int], ...] = ()  # of a cluster, as its nodes told
        self._first = 0  # whom to ask first: whoever did not answer is asked last the next time
        self._tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"Server({self.name})"

    @property
    def name(self) -> str:
        """The server in words, without secrets."""
        if self._embedded is not None:
            return f"embedded Valkey in {os.path.relpath(self._embedded.folder)}"
        return str(self.location)

    @property
    def folder(self) -> Path | None:
        """The embedded server's data folder, if this is one."""
        return self._embedded.folder if self._embedded is not None else None

    @property
    def is_cluster(self) -> bool:
        """Whether keys are spread over slots, so that a queue needs a hash tag."""
        return self.location is not None and self.location.kind == "cluster"

    def link(self, slot: int | None = None, *, client_name: str | None = None, timeout: float = 10.0) -> Link:
        """A new link to the process that owns a slot; it follows that slot."""
        return Link(lambda: self.endpoint(slot), client_name=client_name, timeout=timeout)

    async def endpoint(self, slot: int | None = None) -> Endpoint:
        """The address to connect to now.

        Raises:
            BrokerUnavailable: Nobody could tell.
        """
        if self._embedded is not None:
            return self._plain(await self._embedded.ensure_async())
        location = self.location
        assert location is not None
        if location.kind == "sentinel":
            return await self._ask_sentinels(location)
        if location.kind == "cluster":
            return await self._ask_cluster(location, slot or 0)
        return replace(self._plain(location), alone=True)

    def moved(self, slot: int, host: str, port: int) -> None:
        """Notes that the cluster told of another owner of a slot."""
        self._slots = [entry for entry in self._slots if not entry[0] <= slot <= entry[1]]
        self._slots.append((slot, slot, host, port))

    @property
    def known_url(self) -> str:
        """The URL by which another process finds the server: with the nodes that a cluster told of since."""
        location = self.location
        if location is None:
            return ""
        hosts = dict.fromkeys((*location.hosts, *sorted(self._nodes)))
        return replace(location, hosts=tuple(hosts)).url

    async def master_slots(self) -> list[int | None]:
        """A slot of each master: what to connect to in order to see every key.

        Raises:
            BrokerUnavailable: No node of the cluster told.
        """
        if not self.is_cluster:
            return [None]
        self.forget_slots()
        await self.endpoint(0)
        first: dict[tuple[str, int], int] = {}
        for start, _, host, port in self._slots:
            first.setdefault((host, port), start)
        return list(first.values())

    def forget_slots(self) -> None:
        """Drops what is known of the cluster's slots, so that it is read again."""
        self._slots = []

    def release(self) -> None:
        """Lets go of the embedded server, if this is one."""
        if self._embedded is not None:
            self._embedded.release()

    def _plain(self, location: Location) -> Endpoint:
        host, port = location.hosts[0] if location.hosts else ("127.0.0.1", 6379)
        return Endpoint(
            host=host,
            port=port,
            path=location.path,
            db=location.db,
            username=location.username,
            password=location.password,
            tls=self._context(location),
        )

    def _context(self, location: Location) -> ssl.SSLContext | None:
        if not location.tls:
            return None
        if self._tls is None:
            context = _trusting(location.tls_ca)
            if location.tls_cert:
                try:
                    context.load_cert_chain(location.tls_cert, location.tls_key)
                except (OSError, ValueError) as error:
                    what = "a PEM file with a certificate, and its key there or in tls_key"
                    raise _bad_file("tls_cert", what, location.tls_cert, error) from error
            if not location.tls_verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self._tls = context
        return self._tls

    async def _ask_sentinels(self, location: Location) -> Endpoint:
        failures = []
        base = self._plain(location)
        for host, port in self._hosts(location):
            at = replace(
                base,
                host=host,
                port=port,
                db=0,
                username=location.sentinel_username,
                password=location.sentinel_password,
            )
            try:
                found = await _ask(at, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", location.sentinel_master or "")
            except (BrokerUnavailable, ReplyError) as error:
                failures.append(str(error))
                self._first += 1
                continue
            if found:
                return replace(base, host=found[0].decode(), port=int(found[1]), master=True)
            failures.append(f"{host}:{port} knows no master {location.sentinel_master!r}")
            self._first += 1
        raise BrokerUnavailable("no sentinel named a master: " + "; ".join(failures))

    async def _ask_cluster(self, location: Location, slot: int) -> Endpoint:
        base = self._plain(location)
        found = self._owner(slot)
        failures = []
        if found is None:
            for host, port in self._hosts(location):
                try:
                    answer = await _ask(replace(base, host=host, port=port), "CLUSTER", "SLOTS")
                except (BrokerUnavailable, ReplyError) as error:
                    failures.append(str(error))
                    self._first += 1
                    continue
                self._slots = [
                    (int(entry[0]), int(entry[1]), _named(entry[2][0]) or host, int(entry[2][1]))
                    for entry in answer
                ]
                nodes = ((_named(node[0]) or host, int(node[1])) for entry in answer for node in entry[2:])
                self._nodes = tuple(dict.fromkeys(nodes))
                found = self._owner(slot)
                if found is not None:
                    break
                failures.append(f"{host}:{port} knows no owner of slot {slot}")
                self._first += 1
        if found is None:
            raise BrokerUnavailable("no node of the cluster told its slots: " + "; ".join(failures))
        return replace(base, host=found[0], port=found[1], db=0)

    def _hosts(self, location: Location) -> tuple[tuple[str, int], ...]:
        """Whom to ask: those that the URL names, and those that a cluster told of since."""
        hosts = tuple(dict.fromkeys(location.hosts + self._nodes))
        first = self._first % len(hosts)
        return hosts[first:] + hosts[:first]

    def _owner(self, slot: int) -> tuple[str, int] | None:
        for first, last, host, port in reversed(self._slots):
            if first <= slot <= last:
                return host, port
        return None


def _trusting(authorities: str | None) -> ssl.SSLContext:
    """What checks a server's certificate: by a file of authorities, or by those of the system."""
    try:
        return ssl.create_default_context(cafile=authorities)
    except (OSError, ValueError) as error:
        raise _bad_file("tls_ca", "a PEM file of authorities", authorities, error) from error


def _bad_file(field: str, bound: str, path: str | None, error: Exception) -> ValidationError:
    return ValidationError(field, bound, path, f"{field} must be {bound}, got {path} ({error})")


async def _ask(at: Endpoint, *command: str) -> Any:
    async def here() -> Endpoint:
        return at

    link = Link(here, timeout=ASK_TIMEOUT)
    try:
        async with asyncio.timeout(ASK_TIMEOUT):
            return await link.call(*command)
    except ReplyError as error:
        if error.code in DENIALS:
            raise AccessDenied(f"{at.name}: {error}") from error
        raise
    except TimeoutError:
        raise BrokerUnavailable(f"{at.name}: no answer within {ASK_TIMEOUT} s") from None
    finally:
        await link.close()


def _named(host: bytes | None) -> str:
    """The host that a node of a cluster names; nothing where it means the one that was asked."""
    return "" if host is None or host == b"?" else host.decode()
