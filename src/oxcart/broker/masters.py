"""Which process is master now: the word of the Sentinels, or the slot map of a cluster.

All links of an event loop to one location share a `Masters`. What one of them learns holds for all.

May touch: sockets.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from oxcart.broker.link import DENIALS, Endpoint, Link, ReplyError
from oxcart.model.errors import AccessDenied, BrokerUnavailable

if TYPE_CHECKING:
    from oxcart.broker.location import Location

#: Seconds that one Sentinel or node has to answer. Less than a link has to connect in all, so that a dead one
#: does not hide the others.
ASK_TIMEOUT = 1.5

_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Location, Masters]] = WeakKeyDictionary()


class Masters:
    """The masters behind one location.

    Args:
        location: Sentinels or a cluster.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._slots: list[tuple[int, int, str, int]] = []
        self._last_slots: list[tuple[int, int, str, int]] = []  # also after `forget`
        self._first = 0  # where to begin asking: a node that did not answer is asked last the next time
        #: The nodes of a cluster that its nodes named.
        self.nodes: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, location: Location) -> Masters:
        """Returns the object that the running event loop shares."""
        try:
            shared = _shared.setdefault(asyncio.get_running_loop(), {})
        except RuntimeError:  # no loop runs, so no link does
            return cls(location)
        if location not in shared:
            shared[location] = cls(location)
        return shared[location]

    async def find(self, base: Endpoint, slot: int | None) -> Endpoint:
        """Asks for the master of a slot.

        Args:
            base: The credentials and transport of the endpoint.
            slot: The slot, on a cluster.

        Raises:
            BrokerUnavailable: No Sentinel or node answered with a master.
        """
        if self._location.kind == "sentinel":
            return await self._ask_sentinels(base)
        return await self._ask_cluster(base, slot or 0)

    def owner(self, slot: int) -> tuple[str, int] | None:
        """Returns the last known master of a slot, also when the map was forgotten since."""
        return _owner(self._last_slots, slot)

    def owners(self) -> list[tuple[int, tuple[str, int]]]:
        """Returns the first slot and the master of each range of the map."""
        return [(first, (host, port)) for first, _, host, port in self._slots]

    def moved(self, slot: int, host: str, port: int) -> None:
        """Notes the new owner of a slot."""
        kept = [entry for entry in self._slots if not entry[0] <= slot <= entry[1]]
        self._slots = [*kept, (slot, slot, host, port)]
        self._last_slots = [*self._last_slots, (slot, slot, host, port)]

    def forget(self) -> None:
        """Drops the slot map, so that the next connection reads it again."""
        self._slots = []

    async def _ask_sentinels(self, base: Endpoint) -> Endpoint:
        location = self._location
        failures = []
        for host, port in self._hosts():
            at = replace(
                base,
                host=host,
                port=port,
                db=0,
                username=location.sentinel_username,
                password=location.sentinel_password,
            )
            try:
                found = await ask(at, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", location.sentinel_master or "")
            except (BrokerUnavailable, ReplyError) as error:
                failures.append(str(error))
                self._first += 1
                continue
            if found:
                return replace(base, host=found[0].decode(), port=int(found[1]), master=True)
            failures.append(f"{host}:{port} knows no master {location.sentinel_master!r}")
            self._first += 1
        raise BrokerUnavailable("no sentinel named a master: " + "; ".join(failures))

    async def _ask_cluster(self, base: Endpoint, slot: int) -> Endpoint:
        found = _owner(self._slots, slot)
        failures = []
        if found is None:
            for host, port in self._hosts():
                try:
                    answer = await ask(replace(base, host=host, port=port), "CLUSTER", "SLOTS")
                except (BrokerUnavailable, ReplyError) as error:
                    failures.append(str(error))
                    self._first += 1
                    continue
                self._slots = self._last_slots = [
                    (int(entry[0]), int(entry[1]), _named(entry[2][0]) or host, int(entry[2][1]))
                    for entry in answer
                ]
                nodes = ((_named(node[0]) or host, int(node[1])) for entry in answer for node in entry[2:])
                self.nodes = tuple(dict.fromkeys(nodes))
                found = _owner(self._slots, slot)
                if found is not None:
                    break
                failures.append(f"{host}:{port} knows no owner of slot {slot}")
                self._first += 1
        if found is None:
            raise BrokerUnavailable("no node of the cluster told its slots: " + "; ".join(failures))
        return replace(base, host=found[0], port=found[1], db=0)

    def _hosts(self) -> tuple[tuple[str, int], ...]:
        """The Sentinels or nodes to ask, in order: those of the URL, and those that a cluster named since."""
        hosts = tuple(dict.fromkeys(self._location.hosts + self.nodes))
        first = self._first % len(hosts)
        return hosts[first:] + hosts[:first]


async def ask(at: Endpoint, *command: str) -> Any:
    """Sends one command on a connection of its own."""

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


def _owner(slots: list[tuple[int, int, str, int]], slot: int) -> tuple[str, int] | None:
    for first, last, host, port in reversed(slots):
        if first <= slot <= last:
            return host, port
    return None


def _named(host: bytes | None) -> str:
    """The host that a node names; empty where it means the host that was asked."""
    return "" if host is None or host == b"?" else host.decode()
