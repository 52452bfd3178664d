"""The server of a queue: a URL, or the embedded Valkey; and its present master.

``Server`` answers one question, ``endpoint(slot)``, again for every connection: the address of the process
that owns a slot at this moment. It starts the embedded server if that is necessary. ``masters`` asks
Sentinels and clusters. The reconnect policy is here too.
"""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path

from oxcart.broker.embedded import Embedded, data_folder
from oxcart.broker.link import Endpoint, Link
from oxcart.broker.location import Location, location_from_env
from oxcart.broker.masters import Masters
from oxcart.model.errors import ValidationError

#: Longest pause in seconds while an outage is young; with the pauses of `Reconnect` so many attempts take
#: more than ten seconds.
YOUNG_PAUSE = 4.0
YOUNG_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Reconnect:
    """How long to wait between attempts to reach a lost server.

    Attributes:
        initial: Seconds before the second attempt; doubled each time.
        held: The longest pause while the worker has leases or outcomes.
        idle: The longest pause otherwise. In the first ten seconds no pause is longer than four, so that an
            idle client is back within five seconds after a short outage.
        jitter: Each pause varies by this part, so that a fleet does not reconnect in step.
        attempts: Give up after so many; None never gives up.
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
        url: Its address; by default ``OXCART_URL``, and without that the embedded server.
        folder: The embedded server's data folder, instead of the project's ``.oxcart``.
    """

    def __init__(self, url: str | None = None, *, folder: str | Path | None = None) -> None:
        location = Location.parse(url) if url else None if folder else location_from_env()
        self.location = location
        self._embedded = None if location else Embedded(Path(folder) if folder else data_folder())
        self._nodes: tuple[tuple[str, int], ...] = ()  # of a cluster; they outlive the event loop
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
    def identity(self) -> Hashable:
        """Equal for objects of the same address and credentials."""
        return self.location or self.folder

    @property
    def is_cluster(self) -> bool:
        """Whether keys are spread over slots, so that a queue needs a hash tag."""
        return self.location is not None and self.location.kind == "cluster"

    def link(
        self,
        slot: int | None = None,
        *,
        client_name: str | None = None,
        timeout: float = 10.0,
        blocks: bool = True,
    ) -> Link:
        """Makes a link to the process that owns a slot; it follows that slot.

        Args:
            slot: The slot, on a cluster.
            client_name: The name the server shows for the connection.
            timeout: Seconds after which an unanswered call ends the connection.
            blocks: Whether commands block on this link, so that a late answer means nothing.
        """

        async def resolve() -> Endpoint:
            found = await self.endpoint(slot)
            if found.master:
                link.guard = masters = self._masters
                masters.watch(link, slot)
            return found

        link = Link(resolve, client_name=client_name, timeout=timeout, blocks=blocks)
        return link

    async def endpoint(self, slot: int | None = None) -> Endpoint:
        """The address to connect to now.

        Raises:
            BrokerUnavailable: No Sentinel or node answered.
        """
        if self._embedded is not None:
            return self._plain(await self._embedded.ensure_async())
        location = self.location
        assert location is not None
        if location.kind in ("sentinel", "cluster"):
            masters = self._masters
            found = await masters.find(self._plain(location), slot)
            self._nodes = masters.nodes
            return found
        return replace(self._plain(location), alone=True)

    def place(self, slot: int | None = None) -> Hashable:
        """Identifies the endpoint that serves a slot, as last known; equal places fail together."""
        if self.location is None:
            return self.folder
        owner = self._masters.owner(slot or 0) if self.is_cluster else None
        return self.location, owner

    def moved(self, slot: int, host: str, port: int) -> None:
        """Records the new owner of a slot of a cluster."""
        if self.location is not None:
            self._masters.moved(slot, host, port)

    @property
    def known_url(self) -> str:
        """The URL by which another process finds the server, with the nodes that a cluster has named."""
        location = self.location
        if location is None:
            return ""
        hosts = dict.fromkeys((*location.hosts, *sorted(self._masters.nodes)))
        return replace(location, hosts=tuple(hosts)).url

    async def master_slots(self) -> list[int | None]:
        """Returns a slot of each master: the connections that together see every key.

        Raises:
            BrokerUnavailable: No node of the cluster answered.
        """
        if not self.is_cluster:
            return [None]
        self.forget_slots()
        await self.endpoint(0)
        first: dict[tuple[str, int], int] = {}
        for start, owner in self._masters.owners():
            first.setdefault(owner, start)
        return list(first.values())

    def forget_slots(self) -> None:
        """Drops the slot map of a cluster, so that the next connection reads it again."""
        if self.is_cluster:
            self._masters.forget()

    def release(self) -> None:
        """Releases the embedded server, if this is one."""
        if self._embedded is not None:
            self._embedded.release()

    @property
    def _masters(self) -> Masters:
        assert self.location is not None
        masters = Masters.of(self.location)
        masters.nodes = masters.nodes or self._nodes
        return masters

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


def _trusting(authorities: str | None) -> ssl.SSLContext:
    """Makes the context that checks a server's certificate, by a file of authorities or the system's."""
    try:
        return ssl.create_default_context(cafile=authorities)
    except (OSError, ValueError) as error:
        raise _bad_file("tls_ca", "a PEM file of authorities", authorities, error) from error


def _bad_file(field: str, bound: str, path: str | None, error: Exception) -> ValidationError:
    return ValidationError(field, bound, path, f"{field} must be {bound}, got {path} ({error})")
