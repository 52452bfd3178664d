"""The streams and job records of a Bridge namespace: a job type is a queue, and events carry its attempts.

No list has a completed job's id, so all records are scanned. The fields of a job's last run were written by
the client that ended it. A job that another client's worker ended has no category and no worker; its start is
computed from its result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oxcart.broker.bridge import jobs, members, records
from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.broker.bridge.keys import BridgeKeys
from oxcart.broker.bridge.scripts import load
from oxcart.broker.discovery import STEP, glob_escape
from oxcart.broker.export import DEFAULT_KEPT, EVENTS, Export, JobIds, Pick, StoredJob
from oxcart.broker.replies import text
from oxcart.broker.stored import count_of, int_of, text_of

if TYPE_CHECKING:
    from oxcart.broker.link import Argument

_READER = b"reader:"
#: Any type: a namespace is one slot, and these keys are the same for all its types.
_ANY = "any"
_ENDS = ("completed", "failed")
#: The status of a schedule, which is no job.
_CRON = b"cron"


class BridgeExport(Export):
    """The job types of a namespace."""

    suffixes = (EVENTS,)

    def _keys(self, queue: str = _ANY) -> BridgeKeys:
        return BridgeKeys(queue, self._prefix, self._server.is_cluster)

    def _slot(self, queue: str) -> int:
        return self._keys(queue).slot()

    def _stream(self, queue: str, suffix: str) -> str:
        return self._keys(queue).events()

    async def _script(self, verb: str, queue: str, *arguments: Argument) -> Any:
        return await self._at(queue).again(load(verb), self._keys(queue).waiting(), queue, *arguments)

    async def _stride(self, queue: str, suffix: str, *arguments: Argument) -> Any:
        return await self._script("stride", queue, *arguments)

    async def queues(self, names: Sequence[str], pick: Pick | None) -> list[str]:
        """Returns these types, or those picked of all that our clients have seen."""
        if pick is None:
            return sorted(names)
        found = await self._at(_ANY).command("SMEMBERS", self._keys().types())
        return pick([name.decode("utf-8", "replace") for name in found])

    async def readers(self, queue: str) -> dict[str, int]:
        """Returns the attached readers of a type."""
        flat = await self._at(queue).command("HGETALL", self._keys(queue).reading())
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return {
            name.removeprefix(_READER).decode(): int(until)
            for name, until in pairs
            if name.startswith(_READER)
        }

    async def kept(self, queue: str) -> int:
        """Returns how many events a type keeps."""
        return int(await self._at(queue).command("HGET", self._keys(queue).reading(), "keep") or DEFAULT_KEPT)

    def broker(self, queue: str) -> BridgeBroker:
        """Returns the broker of a type."""
        return BridgeBroker(self._server, queue, namespace=self._prefix, caller=self._at(queue))

    async def job_ids(
        self,
        queues: Sequence[str],
        states: Collection[str] | None = None,
        ended_from: int | None = None,
        ended_to: int | None = None,
    ) -> list[JobIds]:
        """Lists the ids of all jobs of the namespace; only their records contain type and state."""
        prefix = self._keys().data("")
        pattern = f"{glob_escape(prefix)}*"
        ids: set[str] = set()
        cursor = b"0"
        while True:
            cursor, found = await self._at(_ANY).command(
                "SCAN", cursor, "MATCH", pattern, "COUNT", STEP, "TYPE", "string"
            )
            ids.update(text(key)[len(prefix) :] for key in found)
            if cursor == b"0":
                return [JobIds("", "", sorted(ids))]

    async def jobs(self, queue: str, state: str, ids: Sequence[str]) -> list[StoredJob]:
        """Reads jobs of any type and state."""
        keys = self._keys()
        commands: list[tuple[str, ...]] = []
        for job_id in ids:
            texts = (keys.data, keys.status, keys.result, keys.progress, keys.lock)
            commands += [
                ("MGET", *(key(job_id) for key in texts)),
                ("HGETALL", keys.job(job_id)),
                ("ZSCORE", keys.pending(), job_id),
            ]
        replies = iter(await self._at(_ANY).pipeline(commands))
        found = []
        for job_id, texts, flat, pending in zip(ids, replies, replies, replies, strict=True):
            run = dict(zip(flat[::2], flat[1::2], strict=True))
            job = _stored(job_id, texts, run, pending is not None)
            if job is not None:
                found.append(job)
        return found


def _stored(
    job_id: str, texts: Sequence[bytes | None], run: dict[bytes, bytes], pending: bool
) -> StoredJob | None:
    raw, status, result, progress, holder = texts
    if raw is None or status == _CRON:
        return None
    record = records.read_record(raw)
    state = "waiting-children" if pending else _state(status, result)
    starts = max(record.runs, count_of(run.get(b"ats")))
    ended = members.decoded(result)
    ended = ended if isinstance(ended, dict) else {}
    if state in _ENDS and not _is_ours(run, ended):
        run = _run_of_peer(ended)
    elif state == "active" and holder != run.get(b"pb"):
        run = {} if holder is None else {b"pb": holder}
    word = None if status is None else status.decode("utf-8", "replace")
    past = jobs.read_past(record, word, run, result, state)
    return StoredJob(
        id=job_id,
        queue=record.type,
        lane=record.lane or None,
        state=state,
        formal_state=past.state,
        name=jobs.as_text(record.name),
        data=text_of(record.payload),
        options=text_of(_options(record)),
        result=text_of(past.value),
        reason=past.reason,
        stacktrace=past.stacktrace,
        created_ms=_moment(record.created_at) if record.created_at else None,
        started_ms=_moment(int_of(run.get(b"processedOn"), None)),
        ended_ms=_moment(past.finished_ms),
        delay_ms=past.delay,
        priority=record.priority,
        attempts_made=past.attempts_made,
        attempts_started=starts,
        stalls=None,
        worker=text_of(run.get(b"pb")),
        progress=text_of(jobs.progress_of(progress)),
        category=text_of(run.get(b"ox:category")),
        code=text_of(run.get(b"ox:code")),
        correlation_id=jobs.correlation_of(record),
        tags=text_of(members.dump(record.metadata)) if record.metadata else None,
    )


def _options(record: records.Record) -> bytes:
    """Returns the options as JSON, in the words that both protocols share in a copy."""
    options: dict[str, Any] = {
        "attempts": record.attempts,
        "backoff": record.backoff.wire(),
        "priority": record.priority,
    }
    kept = {"removeOnComplete": "completed", "removeOnFail": "failed", "stackTraceLimit": "traces"}
    options |= {name: record.ox[key] for name, key in kept.items() if key in record.ox}
    if record.delay:
        options["delay"] = record.delay
    return members.dump(options)


def _moment(number: int | None) -> int | None:
    return number if number is not None and 0 <= number < 2**53 else None


def _state(status: bytes | None, result: bytes | None) -> str | None:
    """Returns the state by the status, or by the result if there is no status; None without either."""
    known = records.PLACES.get((status or b"").decode("utf-8", "replace"))
    if known is not None or result is None:
        return known
    return "failed" if records.value_of(result) is None else "completed"


def _is_ours(run: Mapping[bytes, bytes], ended: Mapping[str, Any]) -> bool:
    """Returns whether our client ended the job: its recorded time equals that of the result."""
    at = run.get(b"finishedOn")
    return at is not None and (not ended or count_of(at) == ended.get("completedAt"))


def _run_of_peer(ended: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Returns the fields of the run in another client's result."""
    run = {}
    at, took, error = ended.get("completedAt"), ended.get("processingTime"), ended.get("error")
    if isinstance(at, int | float) and isinstance(took, int | float) and 0 <= took <= at < 2**53:
        run[b"processedOn"] = b"%d" % int(at - took)
    if isinstance(error, dict) and isinstance(error.get("name"), str):
        run[b"ox:code"] = error["name"].encode("utf-8", "replace")
    return run
