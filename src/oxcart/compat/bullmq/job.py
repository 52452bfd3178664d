"""A job as in PyPI's package: its fields and its methods.

A job in a processor reads its record only when a field is used: most processors need only the data.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

import msgspec

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.claimed import BullMQClaim
from oxcart.broker.clock import now_ms
from oxcart.broker.port import Ask, Lease, Outcome, OutcomeKind
from oxcart.compat.bullmq.options import backoff_of, policy_of, shown
from oxcart.compat.bullmq.record import dumps, hash_of, loads, next_of, number, texts
from oxcart.compat.bullmq.refusals import refusal, translate_refusal
from oxcart.compat.bullmq.store import HasQueue, store_of
from oxcart.engine.running import RunningJob
from oxcart.model.errors import JobError, JobLocked, JobNotFound, ReplyCode
from oxcart.model.failure import RateLimited
from oxcart.model.flow import OnFailure
from oxcart.model.outcome import Snooze, WaitForChildren
from oxcart.queue import Queue as OxcartQueue

_FLAGS = {
    OnFailure.FAIL: "fpof",
    OnFailure.CONTINUE: "cpof",
    OnFailure.IGNORE: "idof",
    OnFailure.REMOVE: "rdof",
}
#: The names of lists as states.
_LISTS = {"wait": "waiting", "paused": "waiting", "active": "active"}

_NOTHING: Any = (None, None, None, None)


class Job:
    """A job.

    Args:
        queue: Its queue.
        name: Its name.
        data: Its payload.
        opts: Its options.
        job_id: Its id, if the options have none.

    Raises:
        ValueError: The options contain more than one policy for its parent.
    """

    attempts: int
    attemptsMade: int
    attemptsStarted: int
    data: Any
    deduplication_id: str | None
    deferredFailure: str | None
    delay: int
    discarded: bool
    failedReason: str | None
    finishedOn: int | None
    id: str | None
    name: str
    opts: dict[str, Any]
    parent: dict[str, Any] | None
    parentKey: str | None
    priority: int
    processedOn: int | None
    progress: Any
    queue: Any
    queueQualifiedName: str
    removeOnComplete: Any
    removeOnFail: Any
    repeatJobKey: str | None
    returnvalue: Any
    stacktrace: list[str]
    stalledCounter: int
    timestamp: int
    token: str | None
    _ending: Snooze | WaitForChildren | RateLimited | None
    _error: BaseException | None
    _managed: bool
    _running: RunningJob | None

    def __init__(
        self,
        queue: Any,
        name: str,
        data: Any,
        opts: Mapping[str, Any] | None = None,
        job_id: str | None = None,
    ) -> None:
        opts = opts or {}
        parent = opts.get("parent")
        policy = policy_of(opts)
        window = opts.get("deduplication")
        self.__dict__.update(
            name=name,
            id=opts.get("jobId") or job_id,
            progress=0,
            timestamp=opts.get("timestamp") or now_ms(),
            discarded=False,
            opts={"attempts": 0, "delay": 0, **opts, "backoff": backoff_of(opts.get("backoff"))},
            queue=queue,
            delay=opts.get("delay", 0),
            priority=opts.get("priority", 0),
            attempts=opts.get("attempts", 1),
            attemptsMade=0,
            attemptsStarted=0,
            stalledCounter=0,
            data=data,
            removeOnComplete=opts.get("removeOnComplete", True),
            removeOnFail=opts.get("removeOnFail", False),
            processedOn=0,
            finishedOn=0,
            returnvalue=None,
            deferredFailure=None,
            failedReason=None,
            repeatJobKey=None,
            token=None,
            parentKey=f"{parent.get('queue')}:{parent.get('id')}" if parent else None,
            parent={"id": parent.get("id"), "queueKey": parent.get("queue")} if parent else None,
            stacktrace=[],
            deduplication_id=window.get("id") if isinstance(window, Mapping) else None,
            queueQualifiedName=queue.qualifiedName,
            _running=None,
            _managed=False,
            _ending=None,
            _error=None,
        )
        if self.parent and policy in _FLAGS:
            self.parent[_FLAGS[policy]] = True

    @classmethod
    def _claimed(cls, queue: Any, running: RunningJob, *, managed: bool) -> Job:
        """Returns a job for a processor; ``managed`` if our engine ends it."""
        job = cls.__new__(cls)
        job.__dict__.update(
            queue=queue,
            id=running.id,
            token=running.token,
            _running=running,
            _managed=managed,
            _ending=None,
            _error=None,
            _raw=hash_of(running.claim),
        )
        return job

    def __getattr__(self, name: str) -> Any:
        """Reads the record of a claimed job, when one of its fields is used for the first time."""
        raw = self.__dict__.pop("_raw", None)
        if raw is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        own = dict(self.__dict__)
        fields = {
            key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in raw.items()
        }
        self._fill(self.queue, fields, self.__dict__["id"])
        running: RunningJob = own["_running"]
        started = running.fencing - number(fields.get("ox:restarted"))
        self.__dict__.update(attemptsStarted=max(0, started), processedOn=running.started_ms)
        self.__dict__.update(own)
        return getattr(self, name)

    def _fill(self, queue: Any, raw: Mapping[str, Any], job_id: str | None) -> None:
        opts = loads(raw.get("opts"), {})
        opts = shown(opts) if isinstance(opts, dict) else {}
        try:
            Job.__init__(self, queue, raw.get("name", ""), loads(raw.get("data"), {}), opts)
        except ValueError:  # a malformed job of any client can still be read
            Job.__init__(self, queue, raw.get("name", ""), loads(raw.get("data"), {}), {})
            self.opts.update(opts, backoff=backoff_of(opts.get("backoff")))
        found = {name: number(raw.get(name)) for name in ("delay", "priority", "timestamp", "ats", "stc")}
        self.__dict__.update(
            id=job_id if job_id is not None else raw.get("id"),
            progress=loads(raw.get("progress"), 0),
            delay=found["delay"],
            priority=found["priority"],
            timestamp=found["timestamp"],
            # The value that a retry has reset; the server's number only grows, because it is the fencing
            # number.
            attemptsStarted=max(0, found["ats"] - number(raw.get("ox:restarted"))),
            attemptsMade=number(raw.get("attemptsMade") or raw.get("atm")),
            stalledCounter=found["stc"],
            failedReason=raw.get("failedReason") or None,
            repeatJobKey=raw.get("rjk") or None,
            deferredFailure=raw.get("defa") or None,
            returnvalue=loads(raw.get("returnvalue")),
            stacktrace=texts(loads(raw.get("stacktrace"), [])),
        )
        for name in ("finishedOn", "processedOn"):
            if raw.get(name):
                self.__dict__[name] = number(raw[name])
        if raw.get("parentKey"):
            self.parentKey = raw["parentKey"]
        if raw.get("parent"):
            self.parent = loads(raw["parent"])

    @staticmethod
    def fromJSON(queue: Any, rawData: Mapping[str, Any], jobId: str | None = None) -> Job:
        """Returns a job from its stored fields, as text."""
        job = Job.__new__(Job)
        job._fill(queue, rawData, jobId)
        return job

    @staticmethod
    async def fromId(queue: HasQueue, jobId: str) -> Job | None:
        """Returns a job as it is now, or None."""
        (fields,) = await store_of(queue).records([jobId])
        return None if not fields else job_of(queue, jobId, fields)

    @staticmethod
    async def addJobLog(queue: HasQueue, jobId: str, logRow: str, keepLogs: int = 0) -> int:
        """Appends to a job's log; returns how many rows it has."""
        adding = store_of(queue).logs.append(jobId, [str(logRow)], keepLogs or None)
        return await translate_refusal(adding, "addLog", jobId)

    # -- reading

    @property
    def _broker(self) -> BullMQBroker:
        return store_of(self.queue)

    @property
    def _id(self) -> str:
        return str(self.id)

    async def getState(self) -> str:
        """Returns its state, ``unknown`` if there is no such job."""
        return (await self._broker.states([self._id]))[0]

    async def isCompleted(self) -> bool:
        """Returns whether it has completed."""
        return await self.isInZSet("completed")

    async def isFailed(self) -> bool:
        """Returns whether it has failed."""
        return await self.isInZSet("failed")

    async def isDelayed(self) -> bool:
        """Returns whether it is delayed."""
        return await self.isInZSet("delayed")

    async def isWaitingChildren(self) -> bool:
        """Returns whether it waits for children."""
        return await self.isInZSet("waiting-children")

    async def isActive(self) -> bool:
        """Returns whether it is leased."""
        return await self.isInList("active")

    async def isWaiting(self) -> bool:
        """Returns whether it is ready to run, and has no priority."""
        return await self.isInList("wait")

    async def isInZSet(self, set: str) -> bool:
        """Returns whether it is in a state."""
        return await self.getState() == set

    async def isInList(self, list_name: str) -> bool:
        """Returns whether it is in a list."""
        return await self.getState() == _LISTS.get(list_name, list_name)

    async def getChildrenValues(self) -> dict[str, Any]:
        """Returns the results of its children, by their keys."""
        found = await self._broker.flows.every(self._id, "processed")
        return {key: child.value for key, child in found.items()}

    async def getIgnoredChildrenFailures(self) -> dict[str, str]:
        """Returns why children failed whose failure is ignored, by their keys; as in Node."""
        found = await self._broker.flows.every(self._id, "ignored")
        return {key: child.reason or "" for key, child in found.items()}

    async def getDependencies(self, opts: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns its children by their outcomes; as in Node.

        Args:
            opts: For each kind wanted (``processed``, ``unprocessed``, ``ignored``, ``failed``) a dict of
                ``cursor`` and ``count``; all children of all kinds by default.

        Returns:
            ``processed`` and ``ignored`` as dicts by the children's keys, the others as lists of keys; with
            ``opts`` also ``next<Kind>Cursor``, 0 when there are no more.
        """
        kinds = ("processed", "unprocessed", "ignored", "failed")
        if not opts:
            return {kind: _children(kind, await self._broker.flows.every(self._id, kind)) for kind in kinds}
        found: dict[str, Any] = {}
        for kind in kinds:
            asked = opts.get(kind)
            if not asked:
                continue
            asked = asked if isinstance(asked, Mapping) else {}
            page = await self._broker.flows.page(
                self._id, kind, str(asked.get("cursor", 0)), int(asked.get("count", 20))
            )
            found[kind] = _children(kind, {child.key: child for child in page.children})
            found[f"next{kind.capitalize()}Cursor"] = int(page.cursor or 0)
        return found

    async def getDependenciesCount(self, opts: Mapping[str, Any] | None = None) -> dict[str, int]:
        """Returns how many children it has, by their outcomes; as in Node."""
        counts = await self._broker.flows.counts(self._id)
        kinds = [
            kind for kind in ("failed", "ignored", "processed", "unprocessed") if not opts or opts.get(kind)
        ]
        return {kind: int(getattr(counts, kind)) for kind in kinds}

    async def waitUntilFinished(self, queueEvents: Any = None, ttl: int | None = None) -> Any:
        """Waits for its end and returns its result, even if it is removed at its end; as in Node.

        Args:
            queueEvents: Not needed; accepted because Node needs it.
            ttl: How many ms to wait; None for no limit.

        Raises:
            JobFailed: It failed.
            ResultTimeout: It has not ended in time.
        """
        inner: OxcartQueue = self.queue.inner
        return await inner._core.results.wait(self._id, None if ttl is None else ttl / 1000)

    # -- changing

    async def updateData(self, data: Any) -> None:
        """Replaces its payload."""
        self.data = data
        await translate_refusal(self._broker.update_data(self._id, dumps(data)), "updateData", self.id)

    async def updateProgress(self, progress: Any) -> None:
        """Writes its progress: anything that JSON can hold."""
        self.progress = progress
        writing = self._broker.set_progress(self._id, dumps(progress, "progress"))
        await translate_refusal(writing, "updateProgress", self.id)

    async def log(self, logRow: str) -> int:
        """Appends to its log; returns how many rows it has."""
        return await Job.addJobLog(self.queue, self._id, logRow, self.opts.get("keepLogs") or 0)

    async def clearLogs(self, keepLogs: int = 0) -> None:
        """Drops its log except the newest rows; as in Node."""
        await self._broker.logs.clear(self._id, keepLogs)

    async def promote(self) -> None:
        """Promotes it now."""
        await translate_refusal(self._broker.promote_job(self._id), "promote", self.id, "delayed")
        self.delay = 0

    async def changeDelay(self, delay: int) -> None:
        """Changes its delay, counted from now; as in Node."""
        await translate_refusal(self._broker.change_delay(self._id, delay), "changeDelay", self.id, "delayed")
        self.delay = delay

    async def changePriority(self, opts: Mapping[str, Any]) -> None:
        """Changes its priority; ``lifo`` puts it in front of its equals."""
        priority = opts.get("priority") or 0
        changing = self._broker.updates.change_priority(self._id, priority, lifo=bool(opts.get("lifo")))
        await translate_refusal(changing, "changePriority", self.id)
        self.priority = priority

    async def retry(self, state: str = "failed", opts: Mapping[str, Any] | None = None) -> None:
        """Lets it run again after it has failed or completed.

        Args:
            state: Which of the two it is in.
            opts: ``resetAttemptsMade`` resets its attempts, ``resetAttemptsStarted`` its
                starts.
        """
        opts = opts or {}
        lifo, reset = bool(self.opts.get("lifo")), bool(opts.get("resetAttemptsMade"))
        restart = bool(opts.get("resetAttemptsStarted"))
        again = self._broker.retry_job(self._id, state, lifo=lifo, reset=reset, restart=restart)
        await translate_refusal(again, "reprocessJob", self.id, state)
        self.failedReason = self.finishedOn = self.processedOn = self.returnvalue = None
        if reset:
            self.attemptsMade = 0
        if restart:
            self.attemptsStarted = 0

    async def remove(self, opts: Mapping[str, Any] | None = None) -> None:
        """Removes it, with its children unless ``removeChildren`` is False.

        Raises:
            Exception: It is leased, or a child of it is.
        """
        if not await removed(self._broker, self._id, (opts or {}).get("removeChildren", True)):
            raise Exception(f"Job {self.id} could not be removed because it is locked by another worker")

    async def removeUnprocessedChildren(self) -> None:
        """Removes the jobs below it that have not ended and are not leased; as in Node."""
        await translate_refusal(
            self._broker.flows.remove_unprocessed(self._id), "removeUnprocessedChildren", self.id
        )

    async def removeChildDependency(self) -> bool:
        """Detaches it from its parent, which no longer waits for it; returns whether one did. As in Node."""
        leaving = self._broker.flows.leave_parent(self._id)
        left = await translate_refusal(leaving, "removeChildDependency", self.id, parent=self.parentKey)
        if left:
            self.parent = self.parentKey = None
        return left

    async def removeDeduplicationKey(self) -> bool:
        """Closes the deduplication window that it owns; as in Node."""
        window = self.deduplication_id
        return window is not None and await self._broker.deduplication.release(window, self._id)

    def discard(self) -> None:
        """Makes a failure of this attempt final; as in Node."""
        self.discarded = True

    def updateStacktrace(self) -> None:
        """Records the trace of the exception that is being handled."""
        limit = self.opts.get("stackTraceLimit")
        self.stacktrace.append(traceback.format_exc())
        if limit is not None:
            self.stacktrace = self.stacktrace[-limit:] if limit else []

    # -- finishing an attempt

    async def moveToDelayed(self, timestamp: int, token: str | None = None) -> None:
        """Delays it until a time; a processor raises ``DelayedError`` next.

        In a processor that our worker runs it takes effect when the processor ends.
        """
        delay = max(0, timestamp - now_ms())
        if self._is_ours(token):
            self._ending = Snooze(f"{delay}ms")
        else:
            outcome = self._outcome(OutcomeKind.DELAY, token, delay_ms=delay)
            await self._end(outcome, "moveToDelayed")
        self.delay = delay

    async def moveToWaitingChildren(self, token: str, opts: Mapping[str, Any] | None = None) -> bool:
        """Makes it wait for its children; a processor raises ``WaitingChildrenError`` next.

        In a processor that our worker runs it takes effect when the processor ends.

        Returns:
            Whether there is a child to wait for.

        Raises:
            UnrecoverableError: A child has failed, and the job with it.
        """
        if not self._is_ours(token):
            waiting = self._outcome(OutcomeKind.AWAIT_CHILDREN, token)
            return await self._end(waiting, "moveToWaitingChildren") == ReplyCode.DONE
        child = (opts or {}).get("child")
        counts = await self._broker.flows.counts(self._id)
        if counts.failed:
            raise refusal(ReplyCode.CHILD_FAILED, "moveToWaitingChildren", self.id, "active")
        pending = counts.unprocessed > 0
        if pending and child:
            key = f"{child.get('queue')}:{child.get('id')}"
            pending = key in await self._broker.flows.every(self._id, "unprocessed")
        if pending:
            self._ending = WaitForChildren()
        return pending

    async def moveToWait(self, token: str | None = None) -> None:
        """Returns it to the queue; a processor raises ``WaitingError`` next. As in Node."""
        if self._is_ours(token):
            self._ending = RateLimited("1ms")
        else:
            await self._end(self._outcome(OutcomeKind.GIVE_BACK, token), "moveToWait")

    async def moveToCompleted(
        self,
        return_value: Any,
        token: str,
        fetchNext: bool = False,
    ) -> Any:
        """Completes it, for programs without a processor (``Worker.getNextJob``).

        Returns:
            With ``fetchNext`` the next job's fields, id, and ms until which there is none, for
            ``Worker.nextJobFromJobData``; otherwise four times None.
        """
        self.returnvalue = return_value
        outcome = self.queue.judge.of_result(self._hold(token), dumps(return_value, "return value"))
        answer = await self._finished(outcome, token, fetchNext)
        self.finishedOn = outcome.at_ms
        self.attemptsMade += 1
        return answer

    async def moveToFailed(self, err: BaseException, token: str, fetchNext: bool = False) -> Any:
        """Fails or retries it; the counterpart of ``moveToCompleted``.

        Returns:
            As ``moveToCompleted`` for a job that failed for good. For a retried job None, but with
            ``fetchNext`` and a backoff the next job.
        """
        self.failedReason = str(err)
        self._error = err
        outcome = self.queue.judge.of_error(self._hold(token), err)
        retried = outcome.kind != OutcomeKind.FAILED
        answer = await self._finished(outcome, token, fetchNext and not (retried and not outcome.delay_ms))
        if retried and not (fetchNext and outcome.delay_ms):
            answer = None
        self.stacktrace = texts(loads(outcome.stack, []))
        if outcome.kind == OutcomeKind.FAILED:
            self.finishedOn = outcome.at_ms
        elif outcome.delay_ms:
            self.delay = outcome.delay_ms
        self.attemptsMade += 1
        return answer

    async def extendLock(self, token: str, duration: int) -> int:
        """Renews the lock under which it is processed; returns 1 if it is still ours. As in Node."""
        return 0 if await self._broker.renew([Lease(self._id, token)], duration) else 1

    def _is_ours(self, token: str | None) -> bool:
        return self._managed and token in (None, self.token)

    def _hold(self, token: str) -> RunningJob:
        """Returns the job as our engine has it while it runs."""
        running = self._running
        if running is not None and running.token == token:
            return running
        fields = {
            b"name": str(self.name).encode(),
            b"opts": msgspec.json.encode({**self.opts, "backoff": self.opts.get("backoff")}),
            b"atm": str(self.attemptsMade).encode(),
            b"stacktrace": msgspec.json.encode(self.stacktrace),
        }
        claim = BullMQClaim(self._id, token, -1, self.processedOn or 0, fields)
        return RunningJob(self._broker, claim, "", None)

    def _outcome(self, kind: OutcomeKind, token: str | None, *, delay_ms: int = 0) -> Outcome:
        used = token if token is not None else self.token or ""
        running = self._running
        starts = running.fencing if running is not None and running.token == used else -1
        return Outcome(kind, self._id, used, starts, delay_ms=delay_ms, counts=False)

    async def _end(self, outcome: Outcome, command: str) -> int:
        (code,), _ = await self._broker.finish([outcome])
        if isinstance(code, str):
            raise TypeError(f"Job {self.id}: {code}. {command}")
        if code < 0:
            raise refusal(code, command, self.id, "active")
        return code

    async def _finished(self, outcome: Outcome, token: str, fetch_next: bool) -> Any:
        if not fetch_next:
            await self._end(outcome, "moveToFinished")
            return list(_NOTHING)
        (code,), claimed = await self.queue.by_hand(token).finish([outcome], Ask(count=1))
        if isinstance(code, str) or code < 0:
            raise refusal(code if isinstance(code, int) else None, "moveToFinished", self.id, "active")
        return next_of(claimed)


def job_of(queue: Any, job_id: str, fields: Mapping[bytes, bytes]) -> Job:
    """Returns a job from its record."""
    stored = {
        key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in fields.items()
    }
    job = Job.fromJSON(queue, stored, job_id)
    if "parentKey" not in stored:  # its options still name a parent that it has left
        job.parent = job.parentKey = None
    return job


async def removed(broker: BullMQBroker, job_id: str, children: bool) -> int:
    """Removes a job; returns 1 if it is gone, 0 if it is leased, else the code of the refusal."""
    try:
        await broker.remove_job(job_id, children=children)
    except JobLocked:
        return 0
    except JobNotFound:
        return 1
    except JobError as error:
        return error.code or 0
    return 1


def _children(kind: str, found: Mapping[str, Any]) -> Any:
    if kind == "processed":
        return {key: child.value for key, child in found.items()}
    if kind == "ignored":
        return {key: child.reason or "" for key, child in found.items()}
    return list(found)
