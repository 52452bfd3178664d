"""Forwards the log records of a handler's process to its worker.

The handler's process does not have the logging set-up of the worker. So it sends every record from the
worker's level on over the pipe. The worker's logger of the same name handles it, with the fields of the job.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from typing import Any

from oxcart.engine.running import RunningJob

Fields = dict[str, Any]


class Forwarding(logging.Handler):
    """Sends every record of the handler's process to the worker.

    Args:
        send: Sends a record as plain fields.
    """

    def __init__(self, send: Callable[[Fields], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Sends the record: arguments and traceback as text, an extra that cannot be pickled as its repr."""
        try:
            fields = dict(vars(record), msg=self.format(record), args=None)
            fields.update(exc_info=None, exc_text=None, stack_info=None, message=None)
            self._send({name: _portable(value) for name, value in fields.items()})
        except Exception:
            self.handleError(record)


def forward(send: Callable[[Fields], None], level: int) -> None:
    """Sends the log records of this process, from a level on."""
    root = logging.getLogger()
    root.addHandler(Forwarding(send))
    root.setLevel(level)


def handle(fields: Fields, job: RunningJob | None) -> None:
    """Handles a record of a handler's process in the worker, with the fields of the job if it is known."""
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
