"""One job type of a Bridge namespace: every verb of the port is one script, or a few bounded ones.

Scripts never decode a record. The first client of ours that reads a record stores the facts that a claim
needs. For our own jobs that is the add; jobs of other clients are found in the list (``_index``).
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgpack
import msgspec

from oxcart.broker.bridge import bulk, codec, records
from oxcart.broker.bridge.bulk import TypeBulk
from oxcart.broker.bridge.cancelling import TypeCancelling
from oxcart.broker.bridge.census import Census
from oxcart.broker.bridge.claimed import BridgeClaim, ClaimReply, read_claim
from oxcart.broker.bridge.dead_letters import TypeDeadLetters
from oxcart.broker.bridge.keys import DEFAULT_NAMESPACE, BridgeKeys, journal_key
from oxcart.broker.bridge.namespace import BridgeNamespace
from oxcart.broker.bridge.reading import Reading
from oxcart.broker.bridge.rescue import Rescuer, TypeRescue
from oxcart.broker.bridge.sampling import TypeSampling
from oxcart.broker.bridge.schedules import TypeSchedules
from oxcart.broker.bridge.scripts import load
from oxcart.broker.bridge.sealed_values import TypeSealedValues
from oxcart.broker.bridge.steps import TypeSteps
from oxcart.broker.bridge.sweeping import Sweeper
from oxcart.broker.caller import Caller
from oxcart.broker.capabilities import BRIDGE
from oxcart.broker.clock import ServerClock, monotonic_ms, time_left
from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.keyring import KeyRing
from oxcart.broker.port import (
    NOTHING,
    Added,
    Ask,
    Claimed,
    ClaimedJob,
    Code,
    Lease,
    Outage,
    Outcome,
    OutcomeKind,
    Recovered,
)
from oxcart.broker.replies import pairs, text, texts
from oxcart.broker.sealing import Sealer
from oxcart.model import payload
from oxcart.model.errors import (
    BrokerError,
    JobLocked,
    JobNotFound,
    OxcartError,
    ReplyCode,
    ScriptError,
    error_for_code,
)
from oxcart.model.options import JobOptions
from oxcart.model.target import Abilities

#: Most jobs that one call claims, and most attempts that it finishes: a call blocks the server for 2 ms.
CLAIM = 20
FINISH = 25
#: Entries of the list that one call scans.
SCAN = 50
#: Jobs that one call promotes.
PROMOTE = 100
#: Active jobs that one step of a check for lost workers reads.
CHECK = 100
#: Lost jobs that one call recovers.
TAKE_BACK = 25
#: Pending jobs that one call checks.
SETTLE = 50
#: Leases per renewal call.
RENEW_CHUNK = 100
#: Ms for which no other check for lost workers begins: with a lock of 30 s a job is back within 35 s.
CHECK_EVERY = 2_000
#: Seconds after which a check gives up a lost server.
CHECK_TIMEOUT = 1.0
#: Most lanes that a worker names in a claim; beyond that it learns again which of them have work.
MOST_LANES = 500
#: Lanes of which a worker remembers whether it may serve them.
MOST_JUDGED = 10_000
#: How often one claim continues through the list before it returns that there may be more.
ROUNDS = 20
#: Ms for which a job is kept from the worker that failed it: the life of a heartbeat.
REROUTED = 30_000
#: How often a record is read again that another client changes at the same time.
TRIES = 10
#: Outcomes after which a job runs again because it failed.
_AGAIN = (OutcomeKind.RETRY, OutcomeKind.DELAY)
#: Why a job whose workers were lost too often is a dead letter.
LOST = "its worker was lost, and no attempt is left: {} of {}"


class BridgeBroker(Reading):
    """One job type.

    Args:
        server: The server that the namespace is on.
        queue: The job type.
        namespace: The prefix of all keys.
        clock: A clock in ms that replaces the server's; for tests.
        formal: Whether priorities are the five formal ones.
        key_ring: Opens sealed payloads.
        abilities: The abilities of the worker that claims with this broker.
    """

    capabilities = BRIDGE
    deduplication = flows = gates = graphs = groups = lanes = limits = logs = metrics = updates = webhooks = (
        None
    )
    suspects = None

    def __init__(
        self,
        server: Server,
        queue: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        clock: Callable[[], int] | None = None,
        reconnect: Reconnect | None = None,
        caller: Caller | None = None,
        tagged: bool | None = None,
        key_ring: KeyRing | None = None,
        formal: bool = False,
        abilities: Abilities | None = None,
    ) -> None:
        self.server = server
        self.keys = BridgeKeys(queue, namespace, server.is_cluster if tagged is None else tagged)
        self.sealer = Sealer.of(key_ring, "bridge", self.keys.namespace, queue)
        self.slot = self.keys.slot() if server.is_cluster else None
        self.clock = clock if isinstance(clock, ServerClock) else ServerClock(clock)
        self.caller = caller or Caller(
            server, self.slot, uuid.uuid4().hex[:16], journal=journal_key, reconnect=reconnect
        )
        self.next_expiry = 0
        #: Targets are no separate queues here.
        self.base: str = queue
        self.lane: str | None = None
        self._waiting = self.keys.waiting()
        self.formal = formal
        self.abilities = abilities or Abilities()
        self._judged: dict[str, bool] = {"": True}
        self.census = Census(self.keys, self.caller)
        self.bulk = TypeBulk(self)
        self.cancelling = TypeCancelling(self)
        self.dead_letters = TypeDeadLetters(self)
        self.namespace = BridgeNamespace(self)
        self.rescue = TypeRescue(self)
        self.sampling = TypeSampling(self)
        self.schedules = TypeSchedules(self)
        self.sealed_values = TypeSealedValues(self)
        self.steps = TypeSteps(self)
        self._sweeper = Sweeper(self.keys, self.caller)
        self._rescuer = Rescuer(self)

    @property
    def queue(self) -> str:
        """The job type."""
        return self.keys.queue

    def serve(self, abilities: Abilities) -> None:
        """Sets the abilities of the worker that claims with this broker; they may change at any time."""
        if abilities != self.abilities:
            self.abilities = abilities
            self._judged = {"": True}

    # -- adding

    def encode(self, name: str, data: Any, options: JobOptions, trace: str | None = None) -> codec.Encoded:
        """Checks and encodes a job for ``add``; raises before anything is written."""
        options = options.traced(trace)
        return codec.encode_job(
            self.queue, name, data, options, self.clock.argument, formal=self.formal, sealer=self.sealer
        )

    async def add_each(
        self,
        jobs: Sequence[codec.Encoded],
        *,
        timeout: float | None = None,
        replicated: bool = False,
        whole: bool = False,
    ) -> list[Added | OxcartError]:
        """As ``add``, with the errors of refused jobs in their places.

        The error of a failed call is the error of each of its jobs. A missing dependency refuses its job
        alone.
        """
        added: list[Added | OxcartError] = []
        left = time_left(timeout)
        for part in [jobs] if whole else codec.parts(jobs):
            args = [arg for _, job in part for arg in job]
            try:
                sent = monotonic_ms()
                *codes, now = await self.caller.once(
                    load("add"),
                    self._waiting,
                    self.clock.argument,
                    len(part),
                    *args,
                    timeout=left(),
                    replicated=replicated,
                )
                self.clock.learn(sent, now)
            except BrokerError as error:
                added += [error] * (len(jobs) - len(added))
                break
            added += [
                error_for_code(ReplyCode.UNKNOWN_DEPENDENCY, text(code), "add")
                if isinstance(code, bytes)
                else Added(job_id, code == ReplyCode.DONE, at_ms=now)
                for (job_id, _), code in zip(part, codes, strict=True)
            ]
        return added

    # -- running

    async def claim(self, ask: Ask) -> Claimed:
        """Claims ready jobs; continues through the list, and reports if it did not reach the end."""
        return await self._go_on(await self._claim(ask, ask.count), ask, ROUNDS)

    async def finish(self, outcomes: Sequence[Outcome], ask: Ask = NOTHING) -> tuple[list[Code], Claimed]:
        """Finishes attempts and claims into the freed slots."""
        codes: list[Code] = []
        awaited: list[bytes] = []
        for start in range(0, max(1, len(outcomes)), FINISH):
            part = outcomes[start : start + FINISH]
            written = part
            if self.sealer is not None and self.sealer.seals("result"):
                written = [self.sealer.seal_result(outcome) for outcome in part]
            args = self._asked(ask, ask.count if start + FINISH >= len(outcomes) else 0)
            args.append(len(part))
            args += [codec.outcome_of(outcome, self._rerouted(outcome), ask.version) for outcome in written]
            sent = monotonic_ms()
            reply = ClaimReply(*await self.caller.once(load("finish"), self._waiting, *args, patient=True))
            self.clock.learn(sent, reply.now_ms)
            for outcome in part:
                outcome.at_ms = outcome.at_ms or reply.now_ms
            codes += reply.codes
            awaited += reply.awaited
        with contextlib.suppress(BrokerError):  # the next tick does it; the codes must arrive
            for one in awaited:
                await self._settle(one)
        return codes, await self._go_on(reply, ask, 0)

    async def _claim(self, ask: Ask, count: int) -> ClaimReply:
        sent, asked = monotonic_ms(), self._asked(ask, count)
        reply = ClaimReply(*await self.caller.once(load("claim"), self._waiting, *asked, patient=True))
        self.clock.learn(sent, reply.now_ms)
        return reply

    def _asked(self, ask: Ask, count: int) -> list[bytes | str | int]:
        if ask.worker and self.abilities.server is None:
            self.serve(self.abilities.named(ask.worker))
        lanes = [lane for lane, may in self._judged.items() if may]
        if len(lanes) > MOST_LANES:
            self._judged, lanes = {"": True}, [""]
        return [
            self.clock.argument,
            min(count, CLAIM),
            self._worker(ask),
            ask.lock_ms,
            self.queue,
            ask.max_bytes,
            SCAN if count else 0,
            len(lanes),
            *lanes,
        ]

    def _worker(self, ask: Ask) -> str:
        return ask.worker or self.caller.client_id

    async def _go_on(self, reply: ClaimReply, ask: Ask, rounds: int) -> Claimed:
        """Indexes jobs of other clients in the list, and claims again while there may be more."""
        worker = self._worker(ask)
        jobs = self._jobs(reply, worker)
        orphans, repeated = list(reply.orphans), reply.repeated == 1
        beside = False
        while True:
            found = self._judge(reply.lanes)
            closed = reply.closed == 1 or reply.limited_ms > 0
            more = not closed and (found or beside or bool(reply.unknown) or reply.more == 1)
            # The found jobs do not wait: the worker asks again at once.
            if jobs or not ask.count or not more or not rounds:
                with contextlib.suppress(BrokerError):  # the next scan does it; the claimed jobs must arrive
                    if reply.unknown and (unread := await self._read_foreign(reply.unknown)):
                        await self._index(unread)
                break
            rounds -= 1
            unread = await self._read_foreign(reply.unknown) if reply.unknown else None
            # Calls on one connection run in order, unless the server does not know the script yet: hence one
            # more after the last.
            beside = unread is not None
            if unread is None:
                reply = await self._claim(ask, ask.count)
            else:
                calls = (self._index(unread), self._claim(ask, ask.count))
                _, done = await asyncio.gather(*calls, return_exceptions=True)
                if isinstance(done, BaseException):
                    raise done
                reply = done
            jobs += self._jobs(reply, worker)
            orphans += reply.orphans
        return reply.claimed(jobs, texts(orphans), repeated, more)

    def _jobs(self, reply: ClaimReply, worker: str) -> list[ClaimedJob]:
        jobs: list[ClaimedJob] = []
        for raw_id, starts, raw, flat in msgpack.unpackb(reply.jobs, raw=True):
            run = pairs(flat)
            jobs.append(read_claim(text(raw_id), worker, int(starts), reply.now_ms, raw, run))
        return jobs

    def _rerouted(self, outcome: Outcome) -> bytes:
        """Returns the facts of a job that another worker must try next; empty for others."""
        record = outcome.claim.record if isinstance(outcome.claim, BridgeClaim) else None
        if record is None or outcome.kind not in _AGAIN or outcome.code not in record.reroute_on:
            return b""
        facts = record.facts()
        lane = records.away_from(facts.lane, outcome.token, self.clock() + outcome.delay_ms + REROUTED)
        return msgspec.structs.replace(facts, lane=lane).packed()

    def _judge(self, lanes: Iterable[bytes]) -> bool:
        """Updates which lanes the worker may serve; returns whether there is a new one among them."""
        found = False
        for raw in lanes:
            lane = raw.decode("utf-8", "replace")
            if lane not in self._judged:
                if len(self._judged) > MOST_JUDGED:
                    self._judged = {"": True}
                may = records.matches(lane, self.abilities, self.clock())
                if may or not lane.startswith(records.AWAY):  # the others will be ours later
                    self._judged[lane] = may
                found = found or may
        return found

    async def _read_foreign(self, ids: Sequence[bytes]) -> list[bytes | str | int] | None:
        """Reads records of other clients; returns the arguments of ``index.lua``, None for nothing."""
        names = texts(ids)
        keys = [*map(self.keys.data, names), *map(self.keys.status, names)]
        answers = await self.caller.command("MGET", *keys)
        raws, status = answers[: len(ids)], answers[len(ids) :]
        over = {
            one
            for one, raw, state in zip(ids, raws, status, strict=True)
            if raw is None or state == b"completed"
        }
        if over:
            over -= set(await self.caller.again(load("drop"), self._waiting, *over, patient=True))
        lanes: dict[tuple[str, str, int], list[bytes]] = {}
        waiting: list[bytes] = []
        for one, raw in zip(ids, raws, strict=True):
            if raw is None or one in over:
                continue
            facts, depends, event = records.read_facts(raw)
            if not facts.type:  # no worker can run it: the worker that finds it quarantines it
                facts, depends = records.unreadable(self.queue), ()
            if depends:
                waiting += (one, facts.packed(), event, records.pack(depends))
            else:
                lanes.setdefault((facts.type, facts.lane, facts.priority), []).extend(
                    (one, facts.packed(), event)
                )
        if not lanes and not waiting:
            return None
        args: list[bytes | str | int] = [self.clock.argument, len(lanes)]
        for jobs in lanes.values():
            args += (jobs[1], len(jobs) // 3, *jobs)
        return args + list(waiting)

    async def _index(self, args: Sequence[bytes | str | int]) -> None:
        """Stores the facts of other clients' records on the server."""
        await self.caller.again(load("index"), self._waiting, *args, patient=True)

    async def renew(self, leases: Sequence[Lease], lock_ms: int) -> list[str]:
        """Renews leases; returns the ids that were refused."""
        refused: list[str] = []
        for start in range(0, len(leases), RENEW_CHUNK):
            args: list[bytes | str | int] = [self.clock.argument, lock_ms]
            for lease in leases[start : start + RENEW_CHUNK]:
                args += (lease.id, lease.token, lease.starts if lease.starts >= 0 else "")
            answer = await self.caller.again(load("renew"), self._waiting, *args, patient=True)
            refused += map(text, answer)
        return refused

    # -- maintenance

    async def promote(self, most: int = 250) -> tuple[int, int]:
        """Promotes due jobs and releases dependents; returns how many, and the next due time."""
        moved = 0
        while True:
            step = max(0, min(PROMOTE, most - moved))
            sent = monotonic_ms()
            done, due, pending, now = await self.caller.again(
                load("promote"), self._waiting, self.clock.argument, step, patient=True
            )
            self.clock.learn(sent, now)
            moved += done
            if done < PROMOTE or moved >= most:
                break
        if pending:
            await self._settle()
        return moved, due

    async def _settle(self, ended: bytes = b"") -> int:
        """Releases the dependents of an ended job, or of all jobs, in steps; returns how many."""
        at = passed = 0
        begun = False
        through: int
        looked: int
        while True:
            through, looked = await self.caller.again(
                load("settle"),
                self._waiting,
                *(self.clock.argument, at if begun else "", SETTLE, ended),
                patient=True,
            )
            begun = True
            passed += through
            at += looked - through
            if looked < SETTLE:
                return passed

    async def expire(self) -> int:
        """Returns 0: Bridge has no lifetimes."""
        return 0

    async def appear(self, outage: Outage) -> bool:
        """Renews the namespace's sign of life; returns whether the one before had not expired."""
        args = (load("appear"), self._waiting, outage.silence_ms)
        return bool(await self.caller.again(*args, patient=True))

    async def recover(
        self, *, max_stalled: int = 1, interval_ms: int = CHECK_EVERY, outage: Outage | None = None
    ) -> Recovered:
        """Recovers jobs whose worker is gone, in steps, and corrects counters.

        The attempts of a job bound how often it may be lost: each start is one.
        """
        alone = min(interval_ms, CHECK_EVERY)
        away = ("", "") if outage is None else (outage.silence_ms, outage.grace_ms)
        ids: list[str] = []
        foreign: list[bytes] = []
        cursor = b""
        while cursor != b"0":
            cursor, lost, others = await self.caller.again(
                load("lost"),
                self._waiting,
                *(alone, cursor, CHECK, *away),
                patient=True,
                timeout=CHECK_TIMEOUT,
            )
            if cursor == b"busy":
                return Recovered(ids, False, lost)
            ids += await self.take_back(lost)
            foreign += others
        await self._reconcile(foreign)
        await self._sweeper.sweep()
        ids += await self._rescuer.step()
        return Recovered(ids, True)

    async def take_back(self, lost: Sequence[bytes], rescued: Mapping[bytes, int] | None = None) -> list[str]:
        """Recovers active jobs whose workers are gone; returns those that are ready or dead letters now.

        Args:
            lost: The jobs.
            rescued: How often jobs were found in no list; each time counts as an attempt.
        """
        back: list[str] = []
        for start in range(0, len(lost), TAKE_BACK):
            back += await self._take_some_back(lost[start : start + TAKE_BACK], rescued or {})
        return back

    async def _take_some_back(self, lost: Sequence[bytes], rescued: Mapping[bytes, int]) -> list[str]:
        raws = await self.caller.command("MGET", *(self.keys.data(text(one)) for one in lost))
        jobs = []
        for one, raw in zip(lost, raws, strict=True):
            if raw is None:
                jobs.append(records.pack((one, self.queue, "", "", "")))
                continue
            record = records.read_record(raw)
            result, reason = b"", ""
            used = max(record.runs, rescued.get(one, 0))
            if used >= record.attempts:
                reason = LOST.format(used, record.attempts)
                result = codec.failure_of(reason, b"", "WorkerLost")
            jobs.append(records.pack((one, record.type, record.facts(self.queue).packed(), result, reason)))
        return [
            text(one)
            for one in await self.caller.once(
                load("reclaim"), self._waiting, self.clock.argument, *jobs, patient=True
            )
        ]

    async def _reconcile(self, foreign: Sequence[bytes]) -> int:
        """Compares the counters of all types with the active jobs; returns how many were wrong."""
        by_type: dict[str, list[bytes]] = {
            text(raw): [] for raw in await self.caller.command("SMEMBERS", self.keys.types())
        }
        for start in range(0, len(foreign), CHECK):
            part = foreign[start : start + CHECK]
            raws = await self.caller.command("MGET", *(self.keys.data(text(one)) for one in part))
            for one, raw in zip(part, raws, strict=True):
                if raw is not None:
                    by_type.setdefault(records.read_record(raw).type, []).append(one)
        wrong = 0
        for job_type, ids in by_type.items():
            wrong += await self.caller.again(
                load("reconcile"), self._waiting, job_type, len(foreign), *ids, patient=True
            )
        return wrong

    # -- the type

    async def pause(self) -> None:
        """Blocks claims of the type."""
        await self.caller.write("SADD", self.keys.paused(), self.queue)

    async def resume(self) -> None:
        """Allows claims of the type again."""
        await self.caller.write("SREM", self.keys.paused(), self.queue)
        await self.caller.write("ZADD", self.keys.marker(), 0, "0")

    async def kept_seconds(self) -> tuple[int | None, int | None]:
        """Returns how long completed and failed jobs stay: a day, and dead letters until they are removed."""
        return codec.KEPT, None

    async def is_paused(self) -> bool:
        """Returns whether the type is paused."""
        return bool(await self.caller.command("SISMEMBER", self.keys.paused(), self.queue))

    # -- jobs

    async def set_progress(self, job_id: str, progress: Any) -> None:
        """Writes a job's progress."""
        if self.sealer is not None and self.sealer.seals("progress"):
            body = self.sealer.seal("progress", job_id, payload.encode(progress, field="progress"))
            progress = payload.decode(body)
        body = codec.progress_of(progress, self.clock())
        await self._change("set_progress", job_id, self.queue, body)

    async def set_checkpoint(self, job_id: str, token: str, body: bytes) -> None:
        """Stores a running job's checkpoint, under its lease."""
        await self._change("set_checkpoint", job_id, token, body)

    async def update_data(self, job_id: str, data: Any) -> None:
        """Replaces a job's payload."""
        body = payload.encode(data)
        if self.sealer is not None:
            body = self.sealer.seal("payload", job_id, body)
        for _ in range(TRIES):
            raw = await self._raw(job_id)
            new = codec.with_members(raw, payload=body)
            payload.check_size(new, b"")
            if await self._change("replace_record", job_id, raw, new, records.attempts_at(new)):
                return
        raise ScriptError(f"update_data: the record of job {job_id} changes all the time")

    async def change_delay(self, job_id: str, delay_ms: int) -> None:
        """Changes a delayed job's delay."""
        await self._change("change_delay", job_id, self.queue, self.clock.argument, delay_ms)

    async def promote_job(self, job_id: str) -> None:
        """Promotes a delayed job now."""
        _check(await bulk.promote(self, [job_id]), job_id, "promote_job")

    async def retry_job(self, job_id: str, state: str, *, lifo: bool = False, reset: bool = False) -> None:
        """Lets a finished job run again."""
        _check(await bulk.retry(self, [job_id], lifo=lifo, reset=reset), job_id, "retry_job")

    async def remove_job(self, job_id: str, *, children: bool = False) -> None:
        """Removes a job.

        Raises:
            JobLocked: It is leased.
        """
        if _check(await bulk.remove(self, [job_id]), job_id, "remove_job") == ReplyCode.NOTHING_TO_DO:
            raise JobLocked(job_id)

    async def _raw(self, job_id: str) -> bytes:
        raw: bytes | None = await self.caller.command("GET", self.keys.data(job_id))
        if raw is None:
            raise JobNotFound(job_id)
        return raw

    async def _change(self, verb: str, job_id: str, *args: bytes | str | int) -> int:
        return _check([await self.caller.once(load(verb), self._waiting, job_id, *args)], job_id, verb)


def _check(codes: Sequence[int], job_id: str, verb: str) -> int:
    if codes[0] < 0:
        raise error_for_code(codes[0], job_id, verb)
    return codes[0]
