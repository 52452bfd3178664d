"""Logs that name the worker and the job, as text for people or JSON for machines.

Every record carries the worker's id and the current job's id, queue, name, attempt and correlation id. That
includes records of a user's own logger deep below a handler. The current job is a context variable, so
async handlers and threads each find their own.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

from oxcart.engine.running import current_job, current_worker
from oxcart.observe.terminal import clean, clean_json, indented

LogFormat = Literal["text", "json"]

_json = msgspec.json.Encoder(enc_hook=repr)

#: Attributes of every record; all others are the caller's extras, and are shown.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JobContext(logging.Filter):
    """Adds worker and job to records that do not have them.

    A filter for any handler of ``logging``, also of an application's own set-up:
    ``handler.addFilter(JobContext())``.

    Args:
        worker_id: The worker of records outside of jobs and workers.
    """

    def __init__(self, worker_id: str = "") -> None:
        super().__init__()
        self.worker_id = worker_id

    def filter(self, record: logging.LogRecord) -> bool:
        """Adds the fields; accepts every record."""
        fields = vars(record)
        found = fields_here()
        if not found and self.worker_id:
            found = {"worker_id": self.worker_id}
        for name, value in found.items():
            fields.setdefault(name, value)
        return True


def fields_here() -> dict[str, Any]:
    """Returns the fields of a log line of the calling code.

    In a handler these are worker, job, queue, job name, attempt, correlation id and trace; in a worker's own
    loops the worker; elsewhere none.
    """
    job = current_job()
    if job is not None:
        return job.log_fields()
    worker = current_worker.get()
    return {"worker_id": worker} if worker else {}


def job_fields(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Adds the fields of `fields_here` to an event of structlog: a processor for ``structlog.configure``."""
    for name, value in fields_here().items():
        event.setdefault(name, value)
    return event


class JsonFormatter(logging.Formatter):
    """One JSON object per record and line."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as JSON."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _USUAL and name not in line:
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        try:
            text = _json.encode(line).decode()
        except (TypeError, ValueError, UnicodeError):  # a log line must never be lost because of its extras
            text = _json.encode({name: _harmless(value) for name, value in line.items()}).decode()
        return clean_json(text)


class TextFormatter(logging.Formatter):
    """``time level logger [worker] [queue/job name #attempt correlation] message``.

    Further lines of a record are indented, so that no message can pass for a record of its own.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as text."""
        fields = vars(record)
        parts = [_time(record), f"{record.levelname:<7}", record.name]
        if worker := fields.get("worker_id"):
            parts.append(clean(f"[{worker}]"))
        if job_id := fields.get("job_id"):
            about = "/".join(str(part) for part in (fields.get("queue"), job_id) if part)
            if "job_name" in fields:
                about += f" {fields['job_name']} #{fields['attempt']}"
            if correlation := fields.get("correlation_id"):
                about += f" {correlation}"
            parts.append(clean(f"[{about}]"))
        text = " ".join([*parts, record.getMessage()])
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        if record.stack_info:
            text += "\n" + record.stack_info
        return indented(text)


def configure(
    log_format: LogFormat = "text",
    level: int | str = logging.INFO,
    *,
    worker_id: str = "",
    stream: TextIO | None = None,
) -> JobContext:
    """Sends all logs of this process to one stream in one format, replacing the present handlers.

    Args:
        log_format: ``text`` or ``json``.
        level: The lowest level that is logged.
        worker_id: The worker of records outside of jobs.
        stream: Where to write; standard error by default.

    Returns:
        The filter that adds the context; its ``worker_id`` may be set once it is known.
    """
    context = JobContext(worker_id)
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.addFilter(context)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    return context


def _harmless(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text.encode("utf-8", "backslashreplace").decode()


def _time(record: logging.LogRecord) -> str:
    when = datetime.fromtimestamp(record.created, UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{when.microsecond // 1000:03d}Z"
