"""A queue on BullMQ's key layout: every verb of the port is one script or one pipeline of reads."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from oxcart.broker.bullmq import codec
from oxcart.broker.bullmq.adding import split_adds
from oxcart.broker.bullmq.attempts import ClaimReply, claim_args, end_args, read_claim
from oxcart.broker.bullmq.bulk import QueueBulk
from oxcart.broker.bullmq.cancelling import QueueCancelling
from oxcart.broker.bullmq.dead_letters import QueueDeadLetters
from oxcart.broker.bullmq.flows import QueueFlows
from oxcart.broker.bullmq.gates import GateKeeper
from oxcart.broker.bullmq.graphs import QueueGraphs
from oxcart.broker.bullmq.groups import QueueGroups
from oxcart.broker.bullmq.job_parts import QueueDeduplication, QueueLogs, QueueUpdates
from oxcart.broker.bullmq.keys import LISTS, Keys, journal_key
from oxcart.broker.bullmq.lanes import QueueLanes
from oxcart.broker.bullmq.limits import QueueLimits
from oxcart.broker.bullmq.metrics import QueueMetrics
from oxcart.broker.bullmq.reading import Reading
from oxcart.broker.bullmq.rescue import QueueRescue
from oxcart.broker.bullmq.sampling import QueueSampling
from oxcart.broker.bullmq.schedules import QueueSchedules
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.bullmq.sealed_values import QueueSealedValues
from oxcart.broker.bullmq.steps import QueueSteps
from oxcart.broker.bullmq.suspects import QueueSuspects
from oxcart.broker.bullmq.webhooks import WebhookIndex
from oxcart.broker.bullmq.workers import QueueWorkers
from oxcart.broker.caller import Caller, script_error
from oxcart.broker.capabilities import BULLMQ
from oxcart.broker.clock import ServerClock, monotonic_ms, time_left
from oxcart.broker.connection import Reconnect, Server
from oxcart.broker.ids import new_id
from oxcart.broker.keyring import KeyRing
from oxcart.broker.port import (
    LIFETIME_OVER,
    NOTHING,
    Added,
    Ask,
    Claimed,
    Code,
    Lease,
    Outage,
    Outcome,
    Recovered,
)
from oxcart.broker.port.codes import STATES
from oxcart.broker.probe import list_clients
from oxcart.broker.replies import text
from oxcart.broker.sealing import Sealer
from oxcart.broker.stored import count_of
from oxcart.model import payload
from oxcart.model.errors import BrokerError, JobLocked, OxcartError, ReplyCode, error_for_code
from oxcart.model.job import Job
from oxcart.model.options import JobOptions
from oxcart.model.target import split_lane

log = logging.getLogger("oxcart.broker")

#: Add calls in flight at once: while the server works on one, the next is packed.
ADD_CALLS = 2
#: Ids per step of a stalled check.
RECOVER_STEP = 1000
#: Most calls that a pause or resume makes to merge the lists of two generations of peers.
SETTLE_CALLS = 1000
#: Seconds after which a stalled check gives up a lost server. A check that waited would be the first call to
#: arrive, before the workers could renew their leases.
RECOVER_TIMEOUT = 1.0
#: Grace in ms in which a worker may end a running job itself whose lifetime has expired.
EXPIRY_GRACE = 5_000
#: Queues per pipeline that asks which have jobs.
WORK_PART = 500
#: Leases per renewal call.
RENEW_CHUNK = 150
#: What ``lua/add.lua`` writes behind an id: a job has the idempotency key, or the queue gave the number.
_DUPLICATE, _NUMBERED = [1], [2]
#: Refusals that may mean that the job is in a lane of the queue.
_NOT_HERE = (ReplyCode.JOB_NOT_FOUND, ReplyCode.WRONG_STATE)


class BullMQBroker(Reading):
    """One queue.

    Args:
        server: The server that the queue is on.
        queue: Its name.
        prefix: The prefix of the name in its keys.
        clock: A clock in ms that replaces the server's; for tests.
        new_token: Makes the lease token of a claim; for tests.
        key_ring: Opens sealed payloads.
        keep_events: How many events the queue keeps; None leaves it as it is.
    """

    capabilities = BULLMQ
    namespace = None
    keys: Keys

    def __init__(
        self,
        server: Server,
        queue: str,
        *,
        prefix: str = "bull",
        clock: Callable[[], int] | None = None,
        new_token: Callable[[], str] | None = None,
        reconnect: Reconnect | None = None,
        caller: Caller | None = None,
        tagged: bool | None = None,
        key_ring: KeyRing | None = None,
        keep_events: int | None = None,
    ) -> None:
        self.server = server
        self._keep_events = keep_events  # until it is set on the server
        self.keys = Keys(queue, prefix, server.is_cluster if tagged is None else tagged)
        self.slot = self.keys.slot() if server.is_cluster else None
        self.clock = clock if isinstance(clock, ServerClock) else ServerClock(clock)
        self.caller = caller or Caller(
            server, self.slot, uuid.uuid4().hex[:16], journal=journal_key, reconnect=reconnect
        )
        self._meta = self.keys.meta()
        #: When the next lifetime expires, in ms, as the last ``promote`` saw it; 0 for none.
        self.next_expiry = 0
        #: Bounds of the queue that make no sense and were logged.
        self._odd_bounds: set[bytes] = set()
        #: Makes the ids of jobs without one; those of a partition name it.
        self.make_id: Callable[[], str] = new_id
        self._claims = 0
        self._new_token = new_token or self._next_token
        #: The base queue of a lane, and the lane's name within it; itself and None if it is no lane.
        self.base, self.lane = split_lane(queue)
        self.sealer = Sealer.of(key_ring, "bullmq", self.keys.prefix, self.base)
        self.lanes = QueueLanes(self)
        self.limits = QueueLimits(self)
        self.schedules = QueueSchedules(self)
        self.bulk = QueueBulk(self)
        self.cancelling = QueueCancelling(self)
        self.dead_letters = QueueDeadLetters(self)
        self.deduplication = QueueDeduplication(self)
        self.flows = QueueFlows(self)
        self.gates = GateKeeper(self)
        self.graphs = QueueGraphs(self)
        self.groups = QueueGroups(self)
        self.logs = QueueLogs(self)
        self.metrics = QueueMetrics(self)
        self.rescue = QueueRescue(self)
        self.sampling = QueueSampling(self)
        self.sealed_values = QueueSealedValues(self)
        self.steps = QueueSteps(self)
        self.suspects = QueueSuspects(self)
        self.updates = QueueUpdates(self)
        self.webhooks = WebhookIndex(self)

    def open_lane(self, lane: str) -> BullMQBroker:
        """Returns the broker of a lane of this queue, on the same connection."""
        return BullMQBroker(
            self.server,
            f"{self.base}@{lane}",
            prefix=self.keys.prefix,
            clock=self.clock,
            new_token=self._new_token,  # a token is new for every claim, whichever lane it comes from
            caller=self.caller,
            tagged=self.keys.tagged,
            key_ring=None if self.sealer is None else self.sealer.ring,
        )

    def _next_token(self) -> str:
        self._claims += 1
        return f"{self.caller.client_id}:{self._claims}"

    async def with_work(self, brokers: Sequence[Any]) -> list[int]:
        """Returns the indexes of those queues of this server that have jobs which have not ended.

        Schedules, gates, lanes and jobs behind limits count as well.
        """
        found: list[int] = []
        for start in range(0, len(brokers), WORK_PART):
            part = brokers[start : start + WORK_PART]
            answers = await self.caller.pipeline([("EXISTS", *one.keys.of_work()) for one in part])
            found += [start + place for place, many in enumerate(answers) if many]
        return found

    # -- adding

    def encode(self, name: str, data: Any, options: JobOptions, trace: str | None = None) -> codec.Encoded:
        """Checks and encodes a job for ``add``."""
        return codec.encode_job(
            name,
            data,
            options,
            self.clock.argument,
            trace=trace,
            sealer=self.sealer,
            make_id=self.make_id,
        )

    async def add_each(
        self,
        jobs: Sequence[codec.Encoded],
        *,
        timeout: float | None = None,
        replicated: bool = False,
        whole: bool = False,
    ) -> list[Added | OxcartError]:
        """As ``add``, with the error of a refused job in its place.

        The error of a failed call is the error of every job in it, and of the jobs that were not sent yet.
        """
        if len(jobs) == 1:
            job = jobs[0][1]
            tied = "1" if job[codec.FLAGS][:1] == codec.TIED else "0"  # type: ignore[index]
            args = [1, tied if self.lane is None else f"{tied}@{self.lane}", *job]
            try:
                return await self._add_call(jobs, args, timeout, replicated)
            except BrokerError as error:
                return [error]
        parts, left = split_adds(jobs, self.lane, whole), time_left(timeout)
        added: list[Added | OxcartError] = []
        failed: BrokerError | None = None
        calls: deque[tuple[int, asyncio.Task[list[Added | OxcartError]]]] = deque()
        try:
            while True:
                while failed is None and len(calls) < ADD_CALLS and (part := next(parts, None)):
                    sending = self._add_call(*part, left(), replicated)
                    if len(part[0]) == len(jobs):
                        return await sending
                    calls.append((len(part[0]), asyncio.create_task(sending)))
                if not calls:
                    break
                count, first = calls.popleft()
                try:
                    added += await first
                except BrokerError as error:
                    failed = error
                    added += [error] * count
        except BrokerError as error:
            return [error] * len(jobs)
        finally:
            for _, call in calls:
                call.cancel()
        if failed is not None:
            added += [failed] * (len(jobs) - len(added))
        return added

    async def _add_call(
        self,
        jobs: Sequence[codec.Encoded],
        args: list[bytes | str | int],
        timeout: float | None,
        replicated: bool,
    ) -> list[Added | OxcartError]:
        if self._keep_events is not None:
            await self._set_events()
        sent = monotonic_ms()
        *codes, now = await self.caller.once(
            load("add"), self._meta, *args, timeout=timeout, replicated=replicated
        )
        self.clock.learn(sent, now)
        if not codes:
            return [Added(job_id, True, at_ms=now) for job_id, _ in jobs]
        added: list[Added | OxcartError] = []
        done = ReplyCode.DONE
        for (job_id, _), code in zip(jobs, codes, strict=True):
            if isinstance(code, bytes):
                added.append(script_error("add", code.decode("utf-8", "replace")))
            elif isinstance(code, list):
                owner, *why = code  # without a reason a deduplication window kept it out
                added.append(Added(text(owner), why == _NUMBERED, why == _DUPLICATE, now))
            elif code < 0:
                added.append(error_for_code(code, job_id, "add"))
            else:
                added.append(Added(job_id, code == done, at_ms=now))
        return added

    # -- running

    async def claim(self, ask: Ask) -> Claimed:
        """Claims ready jobs."""
        if self._keep_events is not None:
            await self._set_events()
        token, sent = self._new_token(), monotonic_ms()
        args = claim_args(ask, self.clock.argument, token, self.lane)
        reply = ClaimReply(*await self.caller.once(load("claim"), self._meta, *args, patient=True))
        self.clock.learn(sent, reply.now_ms)
        return read_claim(reply, token)

    async def _set_events(self) -> None:
        assert self._keep_events is not None
        await self.caller.again(load("keep_events"), self._meta, self._keep_events)
        self._keep_events = None

    async def finish(self, outcomes: Sequence[Outcome], ask: Ask = NOTHING) -> tuple[list[Code], Claimed]:
        """Finishes attempts and claims into the freed slots."""
        token, sent = self._new_token(), monotonic_ms()
        written = outcomes
        if self.sealer is not None and self.sealer.seals("result"):
            written = [self.sealer.seal_result(outcome) for outcome in outcomes]
        args = claim_args(ask, self.clock.argument, token, self.lane) + end_args(
            written, ask.metrics, ask.version
        )
        reply = ClaimReply(*await self.caller.once(load("finish"), self._meta, *args, patient=True))
        now, codes = reply.now_ms, reply.codes
        self.clock.learn(sent, now)
        for outcome in outcomes:
            outcome.at_ms = outcome.at_ms or now
        if isinstance(codes, int):
            return [ReplyCode.DONE] * codes, read_claim(reply, token)
        read = [code if isinstance(code, int) else code.decode("utf-8", "replace") for code in codes]
        return read, read_claim(reply, token)

    async def renew(self, leases: Sequence[Lease], lock_ms: int) -> list[str]:
        """Renews leases; returns the ids that were refused."""
        refused: list[str] = []
        for start in range(0, len(leases), RENEW_CHUNK):
            args: list[bytes | str | int] = [lock_ms]
            for lease in leases[start : start + RENEW_CHUNK]:
                args += (lease.id, lease.token, lease.starts if lease.starts >= 0 else "")
            answer = await self.caller.again(load("renew"), self._meta, *args, patient=True)
            refused += map(text, answer)
        return refused

    async def appear(self, outage: Outage) -> bool:
        """Renews the queue's sign of life; returns whether the one before had not expired."""
        args = (load("appear"), self._meta, outage.silence_ms)
        return bool(await self.caller.again(*args, patient=True))

    async def recover(
        self, *, max_stalled: int = 1, interval_ms: int = 30_000, outage: Outage | None = None
    ) -> Recovered:
        """Recovers jobs whose worker is gone, in steps that leave the server free in between."""
        away = ("", "") if outage is None else (outage.silence_ms, outage.grace_ms)
        ids: list[str] = []
        phase, cursor = "start", 0
        while phase:
            raw, cursor, *found = await self.caller.again(
                load("recover"),
                self._meta,
                *(phase, self.clock.argument, max_stalled, interval_ms, RECOVER_STEP, cursor, *away),
                patient=True,
                timeout=RECOVER_TIMEOUT,
            )
            phase = raw.decode()
            if phase == "busy":
                return Recovered(ids, False, max(0, cursor))
            ids += map(text, found)
        return Recovered(ids, True, cursor)

    async def promote(self, most: int = 250) -> tuple[int, int]:
        """Promotes due jobs and merges the pause lists; returns how many, and the next due time."""
        sent = monotonic_ms()
        moved, due, self.next_expiry, now, odd, _ = await self.caller.again(
            load("promote"), self._meta, self.clock.argument, most, patient=True
        )
        self.clock.learn(sent, now)
        if odd and odd not in self._odd_bounds:
            self._odd_bounds.add(odd)
            log.warning(
                "queue %s: its meta key holds bounds that make no sense: %s",
                self.queue,
                odd.decode("utf-8", "replace").rstrip(),
            )
        return moved, due

    async def expire(self, *, grace_ms: int = EXPIRY_GRACE) -> int:
        """Ends jobs whose lifetime has expired, in steps; returns how many.

        Args:
            grace_ms: Ms for which a running job is left to its worker; then its lease is deleted.
        """
        ended = 0
        while True:
            done: int = await self.caller.again(
                load("expire"), self._meta, self.clock.argument, LIFETIME_OVER, grace_ms, patient=True
            )
            ended += done
            if not done:
                return ended

    # -- the queue

    async def pause(self) -> None:
        """Blocks claims."""
        await self.caller.once(load("pause"), self._meta)
        await self._settle()

    async def resume(self) -> None:
        """Allows claims again."""
        await self.caller.once(load("resume"), self._meta)
        await self._settle()

    async def _settle(self) -> None:
        """Merges lists that were too long for one call: an older peer's next rename would drop the rest."""
        for _ in range(SETTLE_CALLS):
            rest = self.keys.wait() if await self.is_paused() else self.keys.paused()
            if not await self.caller.command("EXISTS", rest):
                return
            await self.promote(0)

    async def is_paused(self) -> bool:
        """Returns whether the queue is paused."""
        return bool(await self.caller.command("HEXISTS", self._meta, "paused"))

    async def kept_seconds(self) -> tuple[int | None, int | None]:
        """Returns how long completed and failed jobs stay that have no retention; None for ever."""
        raw = await self.caller.command("HGET", self._meta, "ox:retention")
        completed, _, failed = (raw or b"").partition(b":")
        return count_of(completed) or None, count_of(failed) or None

    async def counts(self) -> dict[str, int]:
        """Returns how many jobs are in each wire state."""
        commands = [("LLEN" if state in LISTS else "ZCARD", self.keys.key(state)) for state in STATES]
        return dict(zip(STATES, await self.caller.pipeline(commands), strict=True))

    async def counts_at_once(self) -> dict[str, int]:
        """As ``counts``, all at one moment: no job is missed on its way between two states."""
        commands = [("LLEN" if state in LISTS else "ZCARD", self.keys.key(state)) for state in STATES]
        answers = await self.caller.pipeline([("MULTI",), *commands, ("EXEC",)])
        return dict(zip(STATES, answers[-1], strict=True))

    async def clients(self) -> list[dict[str, str]]:
        """Returns the connections of the queue's server, each as names and values."""
        return await list_clients(self.caller)

    async def remove_key(self, suffix: str) -> bool:
        """Removes a key of the queue by its last part; returns whether it existed."""
        return bool(await self.caller.write("DEL", self.keys.key(suffix)))

    async def counts_over_lanes(self) -> dict[str, int]:
        """Returns how many jobs of the queue and of its lanes are in each wire state."""
        commands = [("LLEN" if state in LISTS else "ZCARD", self.keys.key(state)) for state in STATES]
        *own, has_lanes = await self.caller.pipeline([*commands, ("EXISTS", self.keys.lanes())])
        counted = dict(zip(STATES, own, strict=True))
        if has_lanes:
            for row in (await self.lanes.counts()).values():
                for state in STATES:
                    counted[state] += row[state]
        return counted

    @property
    def registry(self) -> QueueWorkers:
        """The registry of the queue's workers."""
        return QueueWorkers(self)

    async def unroutable(self) -> dict[str, int]:
        """Returns how many jobs wait in lanes that no living worker fits, by the lanes' names."""
        return await self.registry.unroutable()

    async def unroutable_page(self, state: str, first: int, last: int, *, oldest: bool = False) -> list[Job]:
        """Reads a range of jobs of each lane that no living worker fits."""
        found: list[Job] = []
        for lane in await self.unroutable():
            found += await self.lanes.open(lane).page(state, first, last, oldest=oldest)
        return found

    # -- jobs

    async def change(self, verb: str, job_id: str, *args: bytes | str | int, harmless: bool = False) -> int:
        """Runs a script about one job, in the job's queue or lane."""
        run = self.caller.again if harmless else self.caller.once
        code: int = await run(load(verb), self._meta, job_id, *args)
        if code in _NOT_HERE and (lane := await self.lanes.holder(job_id)) is not None:
            code = await run(load(verb), lane.keys.meta(), job_id, *args)
        if code < 0:
            state = (await self.states([job_id]))[0] if code == ReplyCode.WRONG_STATE else ""
            raise error_for_code(code, job_id, verb, state)
        return code

    async def set_progress(self, job_id: str, progress: Any) -> None:
        """Writes a job's progress."""
        body = payload.encode(progress, field="progress")
        if self.sealer is not None:
            body = self.sealer.seal("progress", job_id, body)
        await self.change("set_progress", job_id, body)

    async def update_data(self, job_id: str, data: Any) -> None:
        """Replaces a job's payload."""
        body = payload.encode(data)
        if self.sealer is not None:
            body = self.sealer.seal("payload", job_id, body)
        payload.check_size(body, b"")
        await self.change("update_data", job_id, body, harmless=True)

    async def set_checkpoint(self, job_id: str, token: str, body: bytes) -> None:
        """Stores a running job's checkpoint, under its lease."""
        await self.change("set_checkpoint", job_id, token, body, harmless=True)

    async def change_delay(self, job_id: str, delay_ms: int) -> None:
        """Changes a delayed job's delay."""
        await self.change("change_delay", job_id, delay_ms, self.clock.argument)

    async def promote_job(self, job_id: str) -> None:
        """Promotes a delayed job now."""
        await self.change("promote_job", job_id)

    async def retry_job(
        self, job_id: str, state: str, *, lifo: bool = False, reset: bool = False, restart: bool = False
    ) -> None:
        """Lets a finished job run again; ``reset`` resets its attempts, ``restart`` its starts."""
        front, resets = "L" if lifo else "", ("1" if reset else "") + ("S" if restart else "")
        await self.change("retry_job", job_id, state, front, resets, self.clock.argument)

    async def remove_job(self, job_id: str, *, children: bool = False) -> None:
        """Removes a job.

        Raises:
            JobLocked: It or a child of it is leased.
        """
        if await self.change("remove_job", job_id, "1" if children else "") == ReplyCode.NOTHING_TO_DO:
            raise JobLocked(job_id)
