"""Opens and lists the sealed values among a job's durable steps and waiting signals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from oxcart.broker.keyring import Bond, Purpose
from oxcart.broker.sealing import Sealer, open_value
from oxcart.broker.stored import FIELD_SIGNALS, FIELD_STEP
from oxcart.model.errors import DecryptionError
from oxcart.model.steps import Step, read_step


def bound_as(step: Step) -> tuple[Purpose, str] | None:
    """Returns the purpose and the part that the value of a step is bound to; None if it has no value."""
    if step.kind == "step":
        return "step", step.name
    return ("signal", step.signal) if step.kind == "signal" else None


def open_step(sealer: Sealer | None, job_id: str, name: str, raw: bytes) -> tuple[Step, bytes]:
    """Returns a step without its value, and its value as JSON.

    Raises:
        ValueError: It is no record.
        DecryptionError: Its value does not open.
    """
    step, value = read_step(name, raw)
    bound = bound_as(step)
    if bound is not None:
        value = open_value(sealer, bound[0], job_id, value, part=bound[1])
    return step, value


def open_records(
    sealer: Sealer, job_id: str, records: Mapping[str, bytes], *, lenient: bool = False
) -> dict[str, bytes]:
    """Returns the records of a job's steps, by their names, with their values opened.

    Args:
        sealer: Opens values of the queue.
        job_id: The job.
        records: Its records; one that cannot be read is returned as it is.
        lenient: Whether a value that does not open stays sealed.

    Raises:
        DecryptionError: A value does not open.
    """
    opened = dict(records)
    for name, raw in records.items():
        try:
            step, value = open_step(sealer, job_id, name, raw)
            opened[name] = step.header() + b"\n" + value
        except DecryptionError:
            if not lenient:
                raise
        except ValueError:
            continue
    return opened


def open_steps(
    sealer: Sealer, job_id: str, fields: Mapping[bytes, bytes], *, lenient: bool = False
) -> dict[bytes, bytes]:
    """Returns the fields of a job's steps, among those of its hash, as `open_records` does."""
    names = {field: _name_of(field) for field in fields if field.startswith(FIELD_STEP)}
    records = {name: fields[field] for field, name in names.items()}
    opened = open_records(sealer, job_id, records, lenient=lenient)
    return {field: opened[name] for field, name in names.items()}


def sealed_parts(
    sealer: Sealer, job_id: str, fields: Mapping[bytes, bytes]
) -> Iterator[tuple[bytes, bytes, Bond, Callable[[bytes], bytes]]]:
    """Yields the values of steps and signals: field, value, bond, and how another value replaces it."""
    for field, raw in fields.items():
        if field.startswith(FIELD_STEP):
            try:
                step, value = read_step(_name_of(field), raw)
            except ValueError:
                continue
            if (bound := bound_as(step)) is not None:
                bond = sealer.bond(bound[0], job_id, bound[1])
                yield field, value, bond, _behind(raw[: len(raw) - len(value)])
        elif field == FIELD_SIGNALS:
            for line in raw.splitlines(keepends=True):
                name, _, value = line.rstrip(b"\n").partition(b"\t")
                bond = sealer.bond("signal", job_id, name.decode("utf-8", "replace"))
                yield field, value, bond, _instead(raw, line, name)


def _name_of(field: bytes) -> str:
    return field[len(FIELD_STEP) :].decode("utf-8", "replace")


def _behind(head: bytes) -> Callable[[bytes], bytes]:
    return lambda new: head + new


def _instead(raw: bytes, line: bytes, name: bytes) -> Callable[[bytes], bytes]:
    return lambda new: raw.replace(line, name + b"\t" + new + b"\n", 1)
