"""Brings the log records of a handler's process to its worker, which knows where logs go.

The handler's process has no logging of its own: what is set up in the worker is not there. So every record
of a level that the worker wants is sent over the pipe, and told by the worker's logger of the same name,
with the fields of the job that ran.

May touch: the root logger of a handler's process.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from typing import Any

from oxcart.engine.running import RunningJob

Fields = dict[str, Any]


class Forwarding(logging.Handler):
    """In the handler's process: gives every record to the worker.

    Args:
        send: Takes a record as plain fields.
    """

    def __init__(self, send: Callable[[Fields], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Sends the record, its arguments and traceback as text, an extra that cannot travel as its repr."""
        try:
            told = dict(vars(record), msg=self.format(record), args=None)
            told.update(exc_info=None, exc_text=None, stack_info=None, message=None)
            self._send({name: _portable(value) for name, value in told.items()})
        except Exception:
            self.handleError(record)


def forward(send: Callable[[Fields], None], level: int) -> None:
    """Sends what is logged in this process, from a level on."""
    root = logging.getLogger()
    root.addHandler(Forwarding(send))
    root.setLevel(level)


def tell(fields: Fields, job: RunningJob | None) -> None:
    """In the worker: tells a record of a handler's process, as one of a job where it is known which."""
    record = logging.makeLogRecord(fields)
    if job is not None:
        of_job = {"worker_id": job.worker_id, "job_id": job.id, "queue": job.queue, "job_name": job.name}
        for name, value in (of_job | {"attempt": job.attempt}).items():
            vars(record).setdefault(name, value)
        if job.correlation_id is not None:
            vars(record).setdefault("correlation_id", job.correlation_id)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def _portable(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return repr(value)
    return value
