"""Adds rows as jobs: ``df.write.format("oxcart")`` and ``writeStream``.

A column named ``ox_`` and an option of ``Queue.add`` is that option: ``ox_delay``, ``ox_priority``. The queue
and the name of a job are ``ox_queue`` and ``ox_name``, its payload is ``ox_data``. Without ``ox_data`` all
columns without the prefix together are the payload, whatever their names. A job's id is ``ox_job_id``, or is
made from a key column, so that a task that runs twice adds nothing twice. A row that is refused fails the
write, or goes to a quarantine with its reason.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from oxcart.broker.capabilities import OPTIONS, Capabilities
from oxcart.broker.connection import Server
from oxcart.broker.factory import CAPABILITIES, DEFAULTS
from oxcart.model.errors import OxcartError, UnknownDependency, ValidationError
from oxcart.model.options import AllOptions, JobOptions
from oxcart.model.payload import decode
from oxcart.spark.options import ServerAddress, read_keys

if TYPE_CHECKING:
    import pyarrow as pa

    from oxcart.broker.port import ServedBroker

#: The prefix of columns that are not payload.
PREFIX = "ox_"
#: Columns that are options of a job, and those options.
OPTION_COLUMNS = {f"{PREFIX}{name}": name for name in sorted(AllOptions.__optional_keys__)}
QUEUE, NAME, DATA, JOB_ID = "ox_queue", "ox_name", "ox_data", "ox_job_id"
#: Every column that is not payload.
KNOWN_COLUMNS = frozenset({*OPTION_COLUMNS, QUEUE, NAME, DATA})
#: Rows that are sent together.
CHUNK = 1000

_PLAIN = (
    StringType,
    BooleanType,
    NumericType,
    DecimalType,
    DateType,
    TimestampType,
    TimestampNTZType,
    BinaryType,
)


@dataclass(frozen=True)
class Aim:
    """The settings of a write.

    Attributes:
        queue: The queue of rows without ``ox_queue``.
        key: The column that makes a row unique; ``ox_job_id`` may be given instead.
        name: The job name of rows without ``ox_name``.
        quarantine: Where refused rows go; None fails the write.
        keys_env: The environment variable with the keys that seal the payloads; None leaves them plain.
    """

    queue: str | None
    key: str | None
    name: str | None
    quarantine: str | None
    keys_env: str | None = None

    @classmethod
    def read(cls, options: Mapping[str, str], schema: StructType) -> Aim:
        """Reads a sink's options and checks them against the columns.

        Raises:
            ValidationError: An option is missing, or JSON cannot hold a column's type.
            NotSupported: A column is an option that the queue's protocol does not have.
        """
        names = set(schema.fieldNames())
        protocol = options.get("protocol") or "bullmq"
        for name in sorted(names):
            if name.startswith(PREFIX) and name not in KNOWN_COLUMNS:
                raise ValidationError(
                    "column",
                    f"one of {', '.join(sorted(KNOWN_COLUMNS))}, or without the prefix {PREFIX}",
                    name,
                )
            feature = OPTIONS.get(OPTION_COLUMNS.get(name, ""))
            if feature is not None:
                CAPABILITIES[protocol].require(feature)
        aim = cls(
            options.get("queue") or options.get("path") or None,
            options.get("key") or None,
            options.get("name") or None,
            options.get("quarantine") or None,
            options.get("keysEnv") or None,
        )
        if aim.queue is None and QUEUE not in names:
            raise _missing("queue", f"say which queue: option queue, or a column {QUEUE}")
        if aim.queue is not None:
            ServerAddress.read(options).check(aim.queue)
        if aim.name is None and NAME not in names:
            raise _missing("name", f"say which kind of job: option name, or a column {NAME}")
        if aim.key is not None and aim.key not in names:
            raise ValidationError("key", f"a column of {', '.join(sorted(names))}", aim.key)
        if aim.key is None and JOB_ID not in names:
            raise _missing(
                "key",
                f"say what makes a row unique: option key with a column's name, or a column {JOB_ID}; "
                "without it a task that Spark runs twice would add its jobs twice",
            )
        read_keys(aim.keys_env)  # a variable that is missing here fails before any task runs
        for field in schema.fields:
            _check_type(field.name, field.dataType)
        return aim


@dataclass
class Written(WriterCommitMessage):
    """The result of a task: how many jobs it added and refused, and the file of the refused rows."""

    added: int = 0
    existing: int = 0
    refused: int = 0
    file: str | None = None


class JobWriter(DataSourceArrowWriter):
    """Adds the rows of a table."""

    def __init__(self, address: ServerAddress, aim: Aim) -> None:
        self._address = address
        self._aim = aim

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Adds the rows of one task."""
        return asyncio.run(_add(self._address, self._aim, iterator))

    def commit(self, messages: list[Written | None]) -> None:  # type: ignore[override]
        """Publishes the refused rows: their files get names that readers see."""
        _settle(self._aim, messages)

    def abort(self, messages: list[Written | None]) -> None:  # type: ignore[override]
        """Drops the refused rows. Added jobs stay: the same rows written again add nothing twice."""
        for message in messages:
            if message is not None and message.file is not None:
                Path(message.file).unlink(missing_ok=True)


class JobStreamWriter(DataSourceStreamArrowWriter):
    """Adds the rows of a stream, batch by batch."""

    def __init__(self, address: ServerAddress, aim: Aim) -> None:
        self._address = address
        self._aim = aim

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Adds the rows of one task."""
        return asyncio.run(_add(self._address, self._aim, iterator))

    def commit(self, messages: list[Written | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Publishes the refused rows."""
        _settle(self._aim, messages)

    def abort(self, messages: list[Written | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Drops the refused rows."""
        for message in messages:
            if message is not None and message.file is not None:
                Path(message.file).unlink(missing_ok=True)


def job_id_of(key: Any, protocol: Capabilities = CAPABILITIES["bullmq"]) -> str:
    """Returns the id of a row's job: the same key gives the same id, whatever its type and characters."""
    text = json.dumps(key, sort_keys=True, default=str, ensure_ascii=False)
    made = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"k-{made}" if protocol.can("custom_ids") else str(uuid.UUID(made))


async def _add(address: ServerAddress, aim: Aim, batches: Iterator[pa.RecordBatch]) -> Written:
    server = address.server()
    brokers: dict[str, ServedBroker] = {}
    made = Written()
    refused: list[tuple[str, str]] = []
    options: dict[tuple[Any, ...], JobOptions] = {}
    try:
        for batch in batches:
            rows = batch.to_pylist()
            for start in range(0, len(rows), CHUNK):
                await _add_chunk(
                    address, aim, server, brokers, rows[start : start + CHUNK], options, made, refused
                )
    finally:
        for broker in brokers.values():
            await broker.close()
    if refused:
        made.refused = len(refused)
        if aim.quarantine is None:
            row, reason = refused[0]
            raise ValidationError(
                "row",
                "one that makes a job",
                row,
                f"{len(refused)} rows are refused, the first one because {reason}: {row[:200]}; mend them, "
                "or send them to a folder with option quarantine",
            )
        made.file = _keep(aim.quarantine, refused)
    return made


async def _add_chunk(
    address: ServerAddress,
    aim: Aim,
    server: Server,
    brokers: dict[str, ServedBroker],
    rows: Sequence[dict[str, Any]],
    options: dict[tuple[Any, ...], JobOptions],
    made: Written,
    refused: list[tuple[str, str]],
) -> None:
    jobs: dict[str, list[tuple[dict[str, Any], Any]]] = {}
    for row in rows:
        try:
            queue = row.get(QUEUE) or aim.queue or ""
            if queue not in brokers:
                brokers[queue] = address.broker(server, queue, read_keys(aim.keys_env))
            jobs.setdefault(queue, []).append((row, _encoded(brokers[queue], aim, row, options)))
        except OxcartError as error:
            refused.append((_shown(row), str(error)))
    for queue, found in jobs.items():
        answers = await brokers[queue].add_each([job for _, job in found])
        for (row, _), answer in zip(found, answers, strict=True):
            if isinstance(answer, ValidationError | UnknownDependency):
                refused.append((_shown(row), str(answer)))
            elif isinstance(answer, OxcartError):
                raise answer
            elif answer.created:
                made.added += 1
            else:
                made.existing += 1


def _encoded(
    broker: ServedBroker, aim: Aim, row: dict[str, Any], known: dict[tuple[Any, ...], JobOptions]
) -> Any:
    given = {
        OPTION_COLUMNS[column]: value
        for column, value in row.items()
        if column in OPTION_COLUMNS and column != JOB_ID and value is not None
    }
    key = tuple(sorted((name, str(value)) for name, value in given.items()))
    options = known.get(key)
    if options is None:
        options = known[key] = DEFAULTS[broker.capabilities.protocol].replace(**given)
    job_id = row.get(JOB_ID)
    if job_id is None:
        if aim.key is None or row.get(aim.key) is None:
            raise ValidationError(aim.key or JOB_ID, "given in every row", None)
        job_id = job_id_of(row[aim.key], broker.capabilities)
    return broker.encode(row.get(NAME) or aim.name or "", _payload(row), options.replace(job_id=job_id))


def _payload(row: dict[str, Any]) -> Any:
    if DATA in row:
        data = row[DATA]
        # A text is JSON: the source writes it so, and so do other systems.
        return decode(data) if isinstance(data, str) else data
    return {name: value for name, value in row.items() if not name.startswith(PREFIX)}


def _shown(row: dict[str, Any]) -> str:
    return json.dumps(row, default=str, ensure_ascii=False)


def _keep(folder: str, refused: list[tuple[str, str]]) -> str:
    """Writes refused rows under a hidden name; `_settle` publishes them once the write has succeeded."""
    import pyarrow as pa
    from pyarrow import parquet

    path = Path(folder) / f".{uuid.uuid4().hex}.parquet"
    rows, reasons = zip(*refused, strict=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table({"row": list(rows), "why": list(reasons)}), path)
    except OSError as error:
        raise ValidationError(
            "quarantine",
            "a folder that can be written",
            folder,
            f"quarantine {folder} cannot be written: {error.strerror or error}; {len(refused)} rows are "
            f"refused, the first one because {reasons[0]}",
        ) from error
    return str(path)


def _settle(aim: Aim, messages: Sequence[Written | None]) -> None:
    for message in messages:
        if message is not None and message.file is not None:
            path = Path(message.file)
            if path.exists():
                os.replace(path, path.with_name(path.name.removeprefix(".")))


def _check_type(name: str, kind: DataType) -> None:
    inner: list[DataType] = []
    if isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            raise _wrong_type(name, f"map with keys of type {kind.keyType.simpleString()}")
        inner = [kind.valueType]
    elif isinstance(kind, StructType):
        inner = [field.dataType for field in kind.fields]
    elif not isinstance(kind, _PLAIN):
        raise _wrong_type(name, kind.simpleString())
    for part in inner:
        _check_type(name, part)


def _wrong_type(name: str, kind: str) -> ValidationError:
    return ValidationError(
        name,
        "of a type that JSON can hold",
        kind,
        f"column {name} is of type {kind}, which a job cannot hold: cast it to a text or a number",
    )


def _missing(field: str, text: str) -> ValidationError:
    return ValidationError(field, "given", None, text)
