"""Repeats calls until the server answers, and makes that safe.

A lost answer does not show whether the call was applied. So every call that changes something carries
(slot, number). The script stores its last answer per slot, and the same number returns the same answer
and does nothing. A slot has one call in flight at a time; a caller has as many slots as it has calls in
flight. These stored answers are the caller's journal: one key per slot, which a clean close deletes.

Connection losses are repeated here, with the pauses of ``Reconnect``, and so are temporary refusals
(the server loads its data, fails over, or has too few replicas). If memory or disk are full, only patient
calls are repeated. Every other refusal is a typed error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.link import CALL_TIMEOUT, AnswerLost, Argument, Link, LinkClosed, ReplyError, pack
from oxcart.model.errors import (
    AccessDenied,
    BrokerError,
    BrokerTimeout,
    BrokerUnavailable,
    CrossSlotError,
    NeverConnected,
    NotReplicated,
    OutcomeUnknown,
    ScriptError,
)

if TYPE_CHECKING:
    from oxcart.broker.scripts import Script

log = logging.getLogger("oxcart.broker")

#: Answers that mean "not now": the server is coming up, failing over, busy or without its replicas.
PASSING = frozenset(
    {"LOADING", "MASTERDOWN", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "UNKILLABLE", "NOREPLICAS"}
)
#: Answers that pass only once an operator has made room, in memory or on the disk.
FULL = frozenset({"OOM", "MISCONF"})
#: Seconds for which the server keeps the journal of a slot.
JOURNAL = 600
#: Replicas that must confirm a replicated call, and how many ms one attempt waits for them. The connection
#: does nothing else meanwhile.
REPLICAS = 1
CONFIRM_MS = 1_000

#: Answers that concern one slot of a cluster, not the node.
_OF_SLOT = frozenset({"MOVED", "ASK", "TRYAGAIN"})

#: Seconds that a close spends at most on deleting the caller's journal.
FORGET = 1.0
#: Journal keys that one command deletes.
FORGET_KEYS = 500

#: How servers report inside a script that the user lacks a right; the second is Redis before 7.
_DENIED_IN_SCRIPT = ("ACL failure in script", "The user executing the script can't")


class _Tried:
    """The attempts of one call so far.

    Attributes:
        is_out: The current attempt has been sent.
        is_lost: An earlier attempt was sent and never answered.
        is_applied: The master applied an earlier attempt, but too few replicas confirmed it.
        error: Why the last attempt failed.
    """

    __slots__ = ("error", "is_applied", "is_lost", "is_out")

    def __init__(self, *, is_out: bool = False) -> None:
        self.is_out, self.is_lost, self.is_applied = is_out, False, False
        self.error: BrokerUnavailable | ReplyError | None = None

    def failed(self, error: BrokerUnavailable | ReplyError) -> None:
        """Records how an attempt ended; a refusal means that the server did not apply it."""
        self.is_out = False
        self.is_lost = self.is_lost or isinstance(error, AnswerLost)
        self.error = error

    def overdue(self, verb: str, timeout: float, server: str) -> BrokerTimeout | OutcomeUnknown:
        """Returns the error for a call that was not answered in time."""
        why = f"{server} is silent" if self.error is None else self.error
        if self.is_applied:
            return NotReplicated(f"{verb}: applied, but not replicated within {timeout:.3g} s: {why}")
        if self.is_out or self.is_lost:
            return OutcomeUnknown(f"{verb}: no answer within {timeout:.3g} s: {why}")
        if isinstance(self.error, ReplyError):
            return BrokerTimeout(f"{verb}: refused for {timeout:.3g} s: {why}")
        return NeverConnected(f"{verb}: no connection within {timeout:.3g} s: {why}")

    def refused(self, verb: str, refusal: BrokerError) -> OutcomeUnknown:
        """Returns the error for a call whose repeat the server refused: an earlier attempt may be applied."""
        if self.is_applied:
            return NotReplicated(
                f"{verb}: applied, but not replicated, and its repeat was refused: {refusal}"
            )
        return OutcomeUnknown(f"{verb}: not answered, and its repeat was refused: {refusal}")


class Caller:
    """Runs scripts and commands of one queue's slot, over one link.

    Args:
        server: Where to connect.
        slot: The cluster slot, or None on a single server.
        client_id: Names this caller's journal on the server; unique.
        journal: Returns the journal key of a slot, from the key that a script is called with and the slot's
            name. Without it a close leaves the keys to expire.
        reconnect: The pauses between attempts.
        holding: Returns whether the worker has leases or outcomes, which shortens the pauses.
        on_script: Receives the verb and seconds of every answered script call.
        on_reconnect: Called before every attempt to reach a lost server.
    """

    def __init__(
        self,
        server: Server,
        slot: int | None,
        client_id: str,
        *,
        journal: Callable[[str, str], str] | None = None,
        reconnect: Reconnect | None = None,
        holding: Callable[[], bool] = lambda: True,
        on_script: Callable[[str, float], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> None:
        self._server = server
        self._slot = slot
        self.client_id = client_id
        self.reconnect = reconnect or Reconnect()
        self.holding = holding
        self.on_script = on_script
        self.on_reconnect = on_reconnect
        self.link: Link = server.link(slot, blocks=False)
        #: Whether a close ends the link.
        self.has_own_link = True
        #: Whether the last refusal concerned the queue's slot alone, and not its node.
        self.waits_for_slot = False
        self._free: list[list[int]] = []  # [slot, number] of slots without a call under way
        self._slots_made = 0
        self._journal = journal
        self._written: set[tuple[str, int]] = set()  # (key, slot) of the journal keys of answered calls
        self._repeated: set[int] = set()  # slots of which a dead connection may still deliver a call

    @property
    def place(self) -> Hashable:
        """Identifies the endpoint that the queue is on, as last known; equal places fail together."""
        return self._server.place(self._slot)

    def share(self, other: Caller) -> None:
        """Uses another caller's link from now on, which that one closes, unless its own is open already."""
        if not self.link.is_open:
            self.link, self.has_own_link = other.link, False

    async def close(self) -> None:
        """Deletes the caller's journal as far as no call can need it, and closes its own link."""
        try:
            await self.forget()
        finally:
            if self.has_own_link:
                await self.link.close()

    async def forget(self) -> None:
        """Deletes the journal keys of slots whose calls were all answered over the present connection.

        A call that was sent over a lost connection may still arrive late: its slot's key refuses it, and
        stays until it expires. So does the key of a call that was given up or is in flight.
        """
        if self._journal is None or not self.link.is_connected:
            return
        answered = {slot for slot, _ in self._free} - self._repeated
        done = {(key, slot) for key, slot in self._written if slot in answered}
        keys = [self._journal(key, f"{self.client_id}:{slot}") for key, slot in done]
        self._written -= done
        # Sent at once: a slot that is used again meanwhile writes its key after this has deleted it.
        steps = [("DEL", *keys[at : at + FORGET_KEYS]) for at in range(0, len(keys), FORGET_KEYS)]
        with contextlib.suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(FORGET):
                await self.link.pipeline([pack(step) for step in steps])

    async def once(
        self,
        script: Script,
        key: str,
        *args: Argument,
        patient: bool = False,
        timeout: float | None = None,
        replicated: bool = False,
    ) -> Any:
        """Runs a script that changes something, exactly once however often it is sent.

        Args:
            script: The script.
            key: The key that it is called with.
            *args: Its arguments.
            patient: Whether to wait until memory or disk have room.
            timeout: Seconds after which the call fails.
            replicated: Whether a replica must have confirmed the call before it counts as answered.

        Raises:
            BrokerTimeout: The server could not be reached in time; nothing was applied.
            NotReplicated: The master applied the call, but no replica confirmed it in time.
            OutcomeUnknown: No answer in time, or a refusal after an attempt without an answer; the call may
                have been applied.
            ScriptError: The server refused; nothing was applied.
        """
        taken = self._free.pop() if self._free else [self._slots_made, 0]
        if taken[1] == 0:
            self._slots_made += 1
        taken[1] += 1
        name = f"{self.client_id}:{taken[0]}"
        numbered = (name, taken[1], *args)
        journal = self._journal(key, name) if replicated and self._journal is not None else None
        answer = await self._run(script, key, numbered, patient, timeout, taken[0], journal)
        # Only an answered call frees its slot: a call that was given up may still reach the server.
        self._free.append(taken)
        self._written.add((key, taken[0]))
        return answer

    async def again(
        self, script: Script, key: str, *args: Argument, patient: bool = False, timeout: float | None = None
    ) -> Any:
        """Runs a script that may be applied twice without harm, or only reads."""
        return await self._run(script, key, ("", "", *args), patient, timeout)

    async def command(self, *args: Argument, timeout: float | None = None) -> Any:
        """Runs a command that only reads."""
        return await self._repeat(lambda _: self.link.call(*args), str(args[0]), False, timeout)

    async def write(self, *args: Argument, timeout: float | None = None) -> Any:
        """Runs a command that changes something and may be applied twice without harm."""
        return await self._repeat(lambda _: self.link.call(*args), str(args[0]), False, timeout)

    async def write_all(self, commands: Sequence[Sequence[Argument]], timeout: float | None = None) -> None:
        """Runs such commands in one round trip."""
        await self.pipeline(commands, timeout)

    async def pipeline(
        self, commands: Sequence[Sequence[Argument]], timeout: float | None = None
    ) -> list[Any]:
        """Runs commands that only read, in one round trip."""

        async def send(_: _Tried) -> list[Any]:
            answers = await self.link.pipeline([pack(tuple(command)) for command in commands])
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
            return answers

        answer: list[Any] = await self._repeat(send, "PIPELINE", False, timeout)
        return answer

    async def _run(
        self,
        script: Script,
        key: str,
        args: Sequence[Argument],
        patient: bool,
        timeout: float | None,
        slot: int | None = None,
        journal: str | None = None,
    ) -> Any:
        packed = pack((b"EVALSHA", script.sha, 1, key, *args))
        started = time.perf_counter()
        # A silent server is given up after the caller's timeout if that is shorter than the link's. Otherwise
        # the link decides: a large job on a slow line, whose bytes still move, has all of the caller's time.
        limit = timeout if timeout is not None and timeout < CALL_TIMEOUT else None
        # Nearly every call is answered at once. The link's watch bounds such a first attempt: a timer and the
        # layers of a repeat would cost a fifth of the client's instructions for an add.
        answering = self.link.send(packed, timeout) if limit is None and journal is None else None
        error: BrokerUnavailable | ReplyError | None = None
        if answering is not None:
            try:
                answer = await answering
                if self.link.guard is not None and self.link.guard.doubts(self.link):
                    async with asyncio.timeout(_left(timeout, started)):
                        await self.link.guard.confirm(self.link)
            except (BrokerUnavailable, ReplyError) as first:
                error = first
            except TimeoutError as late:
                if timeout is None:
                    raise
                raise self._overdue(_Tried(is_out=True), script.verb, timeout) from late
        if answering is None or error is not None:
            send = self._sender(script, key, args, packed, limit, journal)
            left = _left(timeout, started)
            answer = await self._repeat(send, script.verb, patient, timeout, slot, error, left)
        if self.on_script is not None:
            self.on_script(script.verb, time.perf_counter() - started)
        return answer

    def _sender(
        self,
        script: Script,
        key: str,
        args: Sequence[Argument],
        packed: bytes,
        limit: float | None,
        journal: str | None,
    ) -> Callable[[_Tried], Any]:
        """Returns a function that makes one attempt of a script call."""

        async def send(tried: _Tried) -> Any:
            link = self.link
            if not link.is_connected:
                await link.connect()
            tried.is_out = True
            try:
                if journal is not None:
                    return await self._confirmed(packed, tried, limit, journal)
                return await link.call_packed(packed, limit)
            except ReplyError as error:
                if error.code != "NOSCRIPT":
                    raise
            # Compiled by a separate call: with the first run it would block the server for the sum of both.
            await link.call_packed(pack((b"EVAL", script.text, 0)), limit)
            whole = pack((b"EVAL", script.text, 1, key, *args))
            if journal is not None:
                return await self._confirmed(whole, tried, limit, journal)
            return await link.call_packed(whole, limit)

        return send

    async def _confirmed(self, packed: bytes, tried: _Tried, limit: float | None, journal: str) -> Any:
        """Sends a numbered call and waits until replicas have it, in one round trip.

        Raises:
            ReplyError: The server refused, or too few replicas confirmed the call in time.
        """
        link = self.link
        ms = CONFIRM_MS if limit is None else max(1, min(CONFIRM_MS, int(limit * 1000)))
        behind: list[tuple[Argument, ...]] = [("WAIT", REPLICAS, ms)]
        if tried.is_lost or tried.is_applied:
            # The script only reads its journal then. WAIT looks back to this connection's last write.
            behind.insert(0, ("EXPIRE", journal, JOURNAL))
        answer, *_, confirmed = await link.pipeline([packed, *map(pack, behind)], limit)
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(confirmed, ReplyError) and not _is_demoted(confirmed):
            raise NotReplicated(f"applied, but the server refuses to wait for replicas: {confirmed}")
        if isinstance(confirmed, BaseException) and not isinstance(confirmed, ReplyError):
            raise confirmed
        if isinstance(confirmed, ReplyError) or confirmed < REPLICAS:
            tried.is_applied = True
            if link.guard is not None:  # most likely another process is now the master
                await link.guard.confirm(link)
            if isinstance(confirmed, ReplyError):
                raise ReplyError(f"NOREPLICAS the server broke off the wait for replicas: {confirmed}")
            raise ReplyError(f"NOREPLICAS {confirmed} of {REPLICAS} replicas confirmed the call in {ms} ms")
        return answer

    async def _repeat(
        self,
        send: Callable[[_Tried], Any],
        verb: str,
        patient: bool,
        timeout: float | None,
        slot: int | None = None,
        failed: BrokerUnavailable | ReplyError | None = None,
        left: float | None = None,
    ) -> Any:
        """Makes attempts until one is answered.

        Args:
            send: Makes an attempt.
            verb: The name of the call, for errors and logs.
            patient: Whether to wait until memory or disk have room.
            timeout: Seconds after which the call fails.
            slot: The slot of a call that changes something.
            failed: Why a first attempt failed.
            left: Seconds of the timeout that are left after that attempt.
        """
        tried = _Tried(is_out=failed is not None)
        if timeout is None:
            return await self._until_answered(send, tried, verb, patient, slot, failed)
        try:
            # the connection, the hang and the repeats included
            async with asyncio.timeout(timeout if left is None else left):
                return await self._until_answered(send, tried, verb, patient, slot, failed)
        except TimeoutError:
            raise self._overdue(tried, verb, timeout) from tried.error

    def _overdue(self, tried: _Tried, verb: str, timeout: float) -> BrokerTimeout | OutcomeUnknown:
        at = self.link.endpoint
        return tried.overdue(verb, timeout, at.name if at else self._server.name)

    async def _until_answered(
        self,
        send: Callable[[_Tried], Any],
        tried: _Tried,
        verb: str,
        patient: bool,
        slot: int | None,
        error: BrokerUnavailable | ReplyError | None,
    ) -> Any:
        link = self.link
        # The server did not run a script that it does not know: the next attempt is the first.
        if error is None or (isinstance(error, ReplyError) and error.code == "NOSCRIPT"):
            try:
                answer = await send(tried)
                if link.guard is not None and link.guard.doubts(link):
                    await link.guard.confirm(link)
                return answer
            except (BrokerUnavailable, ReplyError) as first:
                error = first
        try:
            return await self._repeats(send, tried, verb, patient, slot, error)
        except (AccessDenied, ScriptError) as refusal:
            if slot is None or not (tried.is_lost or tried.is_applied):
                raise
            raise tried.refused(verb, refusal) from refusal

    async def _repeats(
        self,
        send: Callable[[_Tried], Any],
        tried: _Tried,
        verb: str,
        patient: bool,
        slot: int | None,
        error: BrokerUnavailable | ReplyError,
    ) -> Any:
        link, attempt = self.link, 1
        while True:
            tried.failed(error)
            pause = self._judge(error, verb, patient, attempt)
            if self.reconnect.attempts is not None and attempt >= self.reconnect.attempts:
                raise BrokerUnavailable(f"gave up after {attempt} attempts: {error}") from error
            if pause:
                if self.on_reconnect is not None:
                    self.on_reconnect()
                if attempt in (1, 5) or attempt % 20 == 0:
                    log.warning("%s: %s; attempt %d in %.1f s", verb, error, attempt + 1, pause)
                await asyncio.sleep(pause)
            try:
                answer = await send(tried)
                if link.guard is not None and link.guard.doubts(link):
                    await link.guard.confirm(link)
            except (BrokerUnavailable, ReplyError) as another:
                error = another
                attempt += 1
                continue
            if tried.is_lost and slot is not None:
                self._repeated.add(slot)
            if attempt > 1:
                log.info("%s: answered after %d attempts", verb, attempt + 1)
            return answer

    def _judge(self, error: Exception, verb: str, patient: bool, attempt: int) -> float:
        """Returns the seconds to wait before the call is repeated; raises errors that no repeat can fix."""
        if isinstance(error, LinkClosed):
            raise error
        if isinstance(error, BrokerUnavailable):
            self.waits_for_slot = False
            self._server.forget_slots()
            if attempt == 1 and isinstance(error, AnswerLost):
                return 0.0  # usually only the connection was cut: try again at once
            return self.reconnect.pause(attempt, holding=self.holding())
        assert isinstance(error, ReplyError)
        code = error.code
        self.waits_for_slot = code in _OF_SLOT
        if code in ("MOVED", "ASK"):
            # A moving slot is requested at its new node; its old node will soon answer MOVED.
            host, _, port = str(error).split(" ")[2].rpartition(":")
            if host in ("", "?"):  # the node that was asked, at another port
                host = self.link.endpoint.host if self.link.endpoint else "127.0.0.1"
            self._server.moved(self._slot or 0, host, int(port))
            self.link.drop("the slot moved")
            return 0.0 if attempt < 4 else self.reconnect.pause(attempt, holding=True)
        if code in PASSING or (patient and code in FULL):
            if code in ("READONLY", "MASTERDOWN"):
                self.link.drop("the server is no master any more")
            return self.reconnect.pause(attempt, holding=True)
        raise script_error(verb, str(error)) from error


def _left(timeout: float | None, started: float) -> float | None:
    """Returns how many seconds of a timeout are left."""
    return None if timeout is None else max(0.0, timeout - (time.perf_counter() - started))


def _is_demoted(refusal: ReplyError) -> bool:
    """Returns whether a server refuses `WAIT` because it became a replica, before or during the command."""
    return refusal.code == "UNBLOCKED" or "replica instances" in str(refusal)


def script_error(verb: str, text: str) -> AccessDenied | CrossSlotError | ScriptError:
    """Returns the typed error for a server's refusal."""
    if "CROSSSLOT" in text or "non local key" in text or "same slot" in text:
        hint = "a queue on a cluster needs a redis+cluster:// URL, and jobs of one flow a shared hash tag"
        return CrossSlotError(f"{verb}: {text} ({hint})")
    if text.startswith("NOPERM") or any(refusal in text for refusal in _DENIED_IN_SCRIPT):
        return AccessDenied(f"{verb}: {text} (docs/connections.md lists what each role needs)")
    return ScriptError(f"{verb}: {text}")
