"""The jobs of a Bridge namespace as a table: what their keys tell, whoever wrote them.

A completed job's id is in no list, so all records are looked through. What ran last is told by whoever ended
it: a job that another client's worker ended has no category and no worker here, and began when its result
says.

May touch: the server; reads only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from oxcart.broker.bridge import parts, records
from oxcart.broker.bridge.keys import BridgeKeys
from oxcart.broker.bullmq.codec import count_of
from oxcart.broker.discovery import STEP, glob_escape
from oxcart.spark.jobs import JOB_COLUMNS, PER_TASK, PER_TRIP, JobReader, JobSlice, batch_of, row_of
from oxcart.spark.wire import Wire

if TYPE_CHECKING:
    import pyarrow as pa

    from oxcart.broker.connection import Server

_ENDS = ("completed", "failed")
#: The status of a schedule, which is no job.
_CRON = b"cron"
_STALLS = list(JOB_COLUMNS).index("stalls")


class RecordReader(JobReader):
    """Reads jobs of a namespace; those of types that nobody asked for are left out where they are read."""

    def partitions(self) -> list[InputPartition]:
        """Lists ids; one task per so many of them."""
        server = self._access.server()
        keys = self._keys(server)
        prefix = keys.data("")
        pattern = f"{glob_escape(prefix)}*"
        ids: set[str] = set()
        cursor = b"0"
        with _wire(server, keys) as wire:
            while True:
                cursor, found = wire.call("SCAN", cursor, "MATCH", pattern, "COUNT", STEP, "TYPE", "string")
                ids.update(_id(key)[len(prefix) :] for key in found)
                if cursor == b"0":
                    break
        listed = sorted(ids)
        return [JobSlice("", "", tuple(listed[i : i + PER_TASK])) for i in range(0, len(listed), PER_TASK)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The jobs of a slice; those that are gone meanwhile are left out."""
        if not isinstance(partition, JobSlice):
            return
        server = self._access.server()
        keys = self._keys(server)
        with _wire(server, keys) as wire:
            for start in range(0, len(partition.ids), PER_TRIP):
                ids = partition.ids[start : start + PER_TRIP]
                answers = iter(wire.pipeline([command for job_id in ids for command in _asked(keys, job_id)]))
                rows = []
                for job_id, texts, flat, pending in zip(ids, answers, answers, answers, strict=True):
                    run = dict(zip(flat[::2], flat[1::2], strict=True))
                    row = self._row(job_id, texts, run, pending is not None)
                    if row is not None:
                        rows.append(row)
                if rows:
                    yield batch_of(rows)

    def _row(
        self, job_id: str, texts: list[bytes | None], run: dict[bytes, bytes], pending: bool
    ) -> tuple[Any, ...] | None:
        raw, status, result, progress, holder = texts
        if raw is None or status == _CRON:
            return None
        record = records.read_record(raw)
        state = "waiting-children" if pending else state_of(status, result)
        if self._queues is not None and record.type not in self._queues:
            return None
        if self._states is not None and state not in self._states:
            return None
        if record.type not in self._choice.pick([record.type]):
            return None
        starts = max(record.runs, count_of(run.get(b"ats")))
        ended = parts.decoded(result)
        ended = ended if isinstance(ended, dict) else {}
        if state in _ENDS and not _ours(run, ended):
            run = _foreign(ended)
        elif state == "active" and holder != run.get(b"pb"):
            run = {} if holder is None else {b"pb": holder}
        word = None if status is None else status.decode("utf-8", "replace")
        fields = records.job_fields(record, word, run=run, result=result, progress=progress)
        fields[b"ats"] = b"%d" % starts
        if not record.created_at:
            del fields[b"timestamp"]
        row = list(row_of(record.type, record.lane or None, job_id, state, fields))
        row[_STALLS] = None  # nobody counts them
        return tuple(row)

    def _keys(self, server: Server) -> BridgeKeys:
        assert self._access.namespace is not None
        return BridgeKeys("any", self._access.namespace, server.is_cluster)


def state_of(status: bytes | None, result: bytes | None) -> str | None:
    """Where a job is; by its result where its client keeps no status, and None where nobody knows."""
    known = records.PLACES.get((status or b"").decode("utf-8", "replace"))
    if known is not None or result is None:
        return known
    return "failed" if records.value_of(result) is None else "completed"


def _asked(keys: BridgeKeys, job_id: str) -> list[tuple[str | bytes, ...]]:
    texts = (keys.data(job_id), keys.status(job_id), keys.result(job_id), keys.progress(job_id))
    return [
        ("MGET", *map(_raw, texts), _raw(keys.lock(job_id))),
        ("HGETALL", _raw(keys.job(job_id))),
        ("ZSCORE", keys.pending(), _raw(job_id)),
    ]


def _ours(run: Mapping[bytes, bytes], ended: Mapping[str, Any]) -> bool:
    """Whether a client of ours ended the job: it has written down when, and the result says the same."""
    at = run.get(b"finishedOn")
    return at is not None and (not ended or count_of(at) == ended.get("completedAt"))


def _foreign(ended: Mapping[str, Any]) -> dict[bytes, bytes]:
    """What the result of another client tells of the run."""
    told = {}
    at, took, error = ended.get("completedAt"), ended.get("processingTime"), ended.get("error")
    if isinstance(at, int | float) and isinstance(took, int | float) and 0 <= took <= at < 2**53:
        told[b"processedOn"] = b"%d" % int(at - took)
    if isinstance(error, dict) and isinstance(error.get("name"), str):
        told[b"ox:code"] = error["name"].encode("utf-8", "replace")
    return told


def _wire(server: Server, keys: BridgeKeys) -> Wire:
    return Wire(server, keys.slot() if server.is_cluster else None)


def _id(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
