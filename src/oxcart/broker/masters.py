"""Finds the process that is master now, from the Sentinels or from the slot map of a cluster.

All links of an event loop to one location share a `Masters`. What one of them learns applies to all: a link
to a process that is no longer the master is dropped, also an idle one. Its calls are repeated at the new
master.

- Sentinels are asked once a second while a link is open. A master that hung, was replaced and woke
  still answers for ten seconds, until a Sentinel demotes it.
- The nodes of a cluster are asked while a call hangs. A node that wakes learns at once that it was replaced,
  but first it answers the calls that waited in its sockets.
- A late answer is trusted only after the Sentinels, or other nodes, have confirmed the master again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from oxcart.broker.link import DENIALS, AnswerLost, Endpoint, Link, ReplyError
from oxcart.model.errors import AccessDenied, BrokerUnavailable

if TYPE_CHECKING:
    from oxcart.broker.location import Location

log = logging.getLogger("oxcart.broker")

#: Seconds that one Sentinel or node has to answer. Shorter than the time that a link has to connect, so that
#: a silent one does not hide the others.
ASK_TIMEOUT = 1.5
#: Seconds that the others have once one has answered.
GRACE = 0.2
#: Seconds between two looks at the masters, and while a call hangs.
EVERY = 1.0
HURRY = 0.25
#: Seconds for which the answers of all links are doubted after a call has hung.
DOUBT = 2.0
#: Nodes of a cluster that are asked at once, at most.
WITNESSES = 4

Address = tuple[str, int]


class Owner(NamedTuple):
    """The owner of a range of slots; `node` is its id, empty if it is unknown."""

    first: int
    last: int
    host: str
    port: int
    node: str


class Statement(NamedTuple):
    """The answer of one Sentinel or node: the owners that it names, and all nodes that it knows."""

    witness: Address
    owners: list[Owner]
    nodes: tuple[Address, ...] = ()


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Location, Masters]] = WeakKeyDictionary()


class Masters:
    """The masters behind one location.

    Args:
        location: Sentinels or a cluster.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._is_cluster = location.kind == "cluster"
        self._base = Endpoint()
        self._slots: list[Owner] = []
        self._last_slots: list[Owner] = []  # also after `forget`
        self._statements: list[Statement] = []
        self._turn = 0
        #: The nodes of a cluster that its nodes named.
        self.nodes: tuple[Address, ...] = ()
        self._links: WeakKeyDictionary[Link, int] = WeakKeyDictionary()  # and the slots that they follow
        self._witnesses: dict[Address, Link] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: When the last completed check began; if it failed, when it ended.
        self._seen_at = 0.0
        self._hung_at = -DOUBT
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = 0.0

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

    # -- owners of slots

    async def find(self, base: Endpoint, slot: int | None) -> Endpoint:
        """Asks for the master of a slot.

        Args:
            base: The credentials and transport of the endpoint.
            slot: The slot, on a cluster.

        Raises:
            AccessDenied: No Sentinel or node lets us in.
            BrokerUnavailable: No Sentinel or node named a master.
        """
        self._base = base
        found = _owner(self._slots, slot or 0) if self._is_cluster else None
        if found is None:
            try:
                await self._ask_all()
                found = self._choose(slot or 0)
            finally:
                if found is None and not self._links:  # else no link would end the connections to witnesses
                    self._rest()
        if found is None:
            names = ", ".join(f"{one.witness[0]}:{one.witness[1]}" for one in self._statements)
            if self._is_cluster:
                raise BrokerUnavailable(f"no node of the cluster returned its slots: {names} knows no {slot}")
            master = self._location.sentinel_master
            raise BrokerUnavailable(f"no sentinel named a master: {names} knows no master {master!r}")
        db = 0 if self._is_cluster else base.db
        return replace(base, host=found.host, port=found.port, db=db, master=True, node=found.node)

    def owner(self, slot: int) -> Address | None:
        """Returns the last known master of a slot, also when the map was forgotten since."""
        found = _owner(self._last_slots, slot)
        return (found.host, found.port) if found else None

    def owners(self) -> list[tuple[int, Address]]:
        """Returns the first slot and the master of each range of the map."""
        return [(owner.first, (owner.host, owner.port)) for owner in self._slots]

    def moved(self, slot: int, host: str, port: int) -> None:
        """Records the new owner of a slot."""
        new = Owner(slot, slot, host, port, "")
        self._slots = [*(owner for owner in self._slots if not owner.first <= slot <= owner.last), new]
        self._last_slots = [*self._last_slots, new]

    def forget(self) -> None:
        """Drops the slot map, so that the next connection reads it again."""
        self._slots = []

    # -- links that follow their masters

    def watch(self, link: Link, slot: int | None) -> None:
        """Drops a link as soon as its endpoint is no longer the master of a slot."""
        self._links[link] = slot or 0
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._seen_at = loop.time()
            self._timer = loop.call_later(EVERY, self._tick)

    def release(self, link: Link) -> None:
        """Follows a link no longer; with the last one the connections to Sentinels or nodes end."""
        self._links.pop(link, None)
        if not self._links:
            self._rest()

    def doubts(self, link: Link) -> bool:
        """Returns whether an answer that has just come may be that of a master which was replaced.

        It may if the answer is late, or if another link's call hung just before. Behind Sentinels it also
        may if a busy event loop delayed the checks of the masters.
        """
        if link.late is not None:
            return True
        now = asyncio.get_running_loop().time()
        return now - self._hung_at < DOUBT or (not self._is_cluster and now - self._seen_at > 3 * EVERY)

    async def confirm(self, link: Link) -> None:
        """Asks whether the endpoint that answered is still the master; drops the link if it is not.

        If no Sentinel or node answers, a late answer does not count, but the answer to its repeat does.
        Otherwise a master would be unusable while all Sentinels are away.

        Raises:
            AnswerLost: It is not, or the answer was late and no Sentinel or node answered.
        """
        at, was_late, slot = link.late or link.endpoint, link.late is not None, self._links.get(link, 0)
        if at is None:
            return
        try:
            await self._look_after(asyncio.get_running_loop().time())
        except (BrokerUnavailable, AccessDenied) as error:
            if was_late:
                raise AnswerLost(f"{at.name} answered late, and none confirms it: {error}") from error
            return
        finally:
            link.late = None
        if self._is_replaced(at, slot):  # the look has dropped the link
            raise AnswerLost(f"{at.name} answered, but it is no longer the master")
        if was_late and not self._is_confirmed(at, slot):
            raise AnswerLost(f"{at.name} answered late, and no other node confirms it")

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        open_links = [link for link in self._links if link.is_open]
        if not open_links:
            self._rest()
            return
        hangs = any(link.is_silent for link in open_links)
        if hangs:
            self._hung_at = loop.time()
        self._timer = loop.call_later(HURRY if hangs else EVERY, self._tick)
        if self._looking is None and (hangs or not self._is_cluster):
            self._start_look()

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        witnesses, self._witnesses = self._witnesses, {}
        for link in witnesses.values():
            link.shut()

    def _start_look(self) -> asyncio.Task[None]:
        self._looking = asyncio.get_running_loop().create_task(self._look(), name="oxcart-masters")
        self._looking.add_done_callback(self._looked)
        return self._looking

    def _looked(self, task: asyncio.Task[None]) -> None:
        if self._looking is task:
            self._looking = None
        if not task.cancelled():
            task.exception()  # the next look may succeed
        if not self._links:
            self._rest()

    async def _look_after(self, since: float) -> None:
        """Waits for a check that began after a time (of the event loop)."""
        while self._looked_at < since:
            looking = self._looking
            # Never a task that is done: awaiting it would not run its callback, which clears it.
            await asyncio.shield(self._start_look() if looking is None or looking.done() else looking)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self._ask_all()
        except (BrokerUnavailable, AccessDenied):
            self._seen_at = loop.time()  # asking again with every answer would stop the work
            raise
        replaced: Counter[str] = Counter()
        for link, slot in list(self._links.items()):
            if link.is_open and link.endpoint is not None and self._is_replaced(link.endpoint, slot):
                replaced[link.endpoint.name] += 1
                self.forget()
                link.drop("it is no longer the master")
        for name, count in replaced.items():
            log.warning("%s is no longer the master; connections dropped: %d", name, count)
        self._looked_at = self._seen_at = began

    # -- the answers of Sentinels and nodes

    def _choose(self, slot: int) -> Owner | None:
        """Returns the newest named owner of a slot: others before its own, new owners first."""
        known = self.owner(slot)
        best: tuple[int, Owner, list[Owner]] | None = None
        for witness, owners, _ in self._statements:
            if (owner := _owner(owners, slot)) is not None:
                at = (owner.host, owner.port)
                rank = 2 * (at != witness) + (at != known)
                if best is None or rank > best[0]:
                    best = rank, owner, owners
        if best is None:
            return None
        if self._is_cluster:
            self._slots = self._last_slots = best[2]
        return best[1]

    def _is_replaced(self, at: Endpoint, slot: int) -> bool:
        """Returns whether a node names another owner of the slot; that owner's own answer does not count."""
        for witness, owners, _ in self._statements:
            owner = _owner(owners, slot)
            if owner is None or witness == (owner.host, owner.port):
                continue
            same_node = bool(owner.node) and owner.node == at.node
            if not same_node and (owner.host, owner.port) != (at.host, at.port):
                return True
        return False

    def _is_confirmed(self, at: Endpoint, slot: int) -> bool:
        """Returns whether a node other than the endpoint named an owner; a single node needs no witness."""
        named = (witness for witness, owners, _ in self._statements if _owner(owners, slot) is not None)
        return any(witness != (at.host, at.port) for witness in named) or len(self.nodes) == 1

    async def _ask_all(self) -> None:
        """Asks Sentinels or nodes at once; silent ones get a short grace after the first answer.

        Raises:
            AccessDenied: None answered, and one does not let us in.
            BrokerUnavailable: None answered.
        """
        hosts, statements = self._hosts(), list[Statement]()
        failures: list[Exception] = []
        step = WITNESSES if self._is_cluster else len(hosts)
        for first in range(0, len(hosts), step):
            statements = await self._ask_some(hosts[first : first + step], failures)
            if statements:
                break
        else:
            denials = [error for error in failures if isinstance(error, AccessDenied)]
            if denials:
                raise denials[0]
            what = (
                "no node of the cluster returned its slots"
                if self._is_cluster
                else "no sentinel named a master"
            )
            raise BrokerUnavailable(f"{what}: " + "; ".join(map(str, failures)))
        if self._is_cluster:
            self.nodes = tuple(dict.fromkeys(node for one in statements for node in one.nodes))
        elif len({owner for one in statements for owner in one.owners}) > 1:
            statements = [await self._newest(statements)]
        self._statements = statements

    async def _ask_some(self, hosts: Sequence[Address], failures: list[Exception]) -> list[Statement]:
        loop = asyncio.get_running_loop()
        asking = {loop.create_task(self._ask(host)): host for host in hosts}
        pending, end = set(asking), loop.time() + ASK_TIMEOUT
        statements: list[Statement] = []
        try:
            while pending and loop.time() < end:
                done, pending = await asyncio.wait(
                    pending, timeout=end - loop.time(), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    try:
                        statements.append(task.result())
                        end = min(end, loop.time() + GRACE)
                    except (BrokerUnavailable, ReplyError, AccessDenied) as error:
                        failures.append(error)
        finally:
            for task in pending:
                task.cancel()
                host = asking[task]
                failures.append(BrokerUnavailable(f"{host[0]}:{host[1]}: no answer within {ASK_TIMEOUT} s"))
                if (link := self._witnesses.pop(host, None)) is not None:
                    link.shut()
        return statements

    async def _ask(self, host: Address) -> Statement:
        if not self._is_cluster:
            name = self._location.sentinel_master or ""
            named = await self._call(host, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
            return Statement(host, [Owner(0, 0, named[0].decode(), int(named[1]), "")] if named else [])
        owners, known = [], dict[Address, None]()
        for first, last, *nodes in await self._call(host, "CLUSTER", "SLOTS"):
            places = [(_named(node[0]) or host[0], int(node[1])) for node in nodes]
            known.update(dict.fromkeys(places))
            node = nodes[0][2].decode() if len(nodes[0]) > 2 else ""
            owners.append(Owner(int(first), int(last), *places[0], node))
        return Statement(host, owners, tuple(known))

    async def _newest(self, statements: Sequence[Statement]) -> Statement:
        """Returns the answer of the Sentinel that knows the newest failover, if they differ."""
        newest, best = -1, statements[0]
        for one in statements:
            with contextlib.suppress(BrokerUnavailable, ReplyError, AccessDenied):
                flat = await self._call(
                    one.witness, "SENTINEL", "MASTER", self._location.sentinel_master or ""
                )
                epoch = int(dict(zip(flat[::2], flat[1::2], strict=False)).get(b"config-epoch", 0))
                if one.owners and epoch > newest:
                    newest, best = epoch, one
        return best

    async def _call(self, host: Address, *command: str) -> Any:
        link = self._witnesses.get(host)
        if link is None:
            at = replace(self._base, host=host[0], port=host[1], db=0)
            if not self._is_cluster:
                location = self._location
                at = replace(at, username=location.sentinel_username, password=location.sentinel_password)

            async def here() -> Endpoint:
                return at

            link = self._witnesses[host] = Link(here, timeout=ASK_TIMEOUT)
        try:
            return await link.call(*command)
        except ReplyError as error:
            if error.code in DENIALS:
                raise AccessDenied(f"{host[0]}:{host[1]}: {error}") from error
            raise

    def _hosts(self) -> list[Address]:
        """Returns the Sentinels, or the nodes of the cluster: those of the URL, and those named since.

        Nodes take turns; one at which a call hangs is asked last.
        """
        hosts = list(dict.fromkeys(self._location.hosts + self.nodes))
        if not self._is_cluster:
            return hosts
        self._turn += 1
        first = self._turn % len(hosts)
        hosts = hosts[first:] + hosts[:first]
        silent = {
            (link.endpoint.host, link.endpoint.port)
            for link in self._links
            if link.endpoint is not None and link.is_silent
        }
        return sorted(hosts, key=silent.__contains__)


def _owner(owners: list[Owner], slot: int) -> Owner | None:
    for owner in reversed(owners):
        if owner.first <= slot <= owner.last:
            return owner
    return None


def _named(host: bytes | None) -> str:
    """Returns the host that a node names; empty if it means the host that was asked."""
    return "" if host is None or host == b"?" else host.decode()
