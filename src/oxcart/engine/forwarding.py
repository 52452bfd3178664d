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

log = logging.getLogger("oxcart.worker")

#: The level below which logging is off, and levels by the names of loggers; the root's name is empty.
Levels = tuple[int, dict[str, int]]

#: The loggers of this process that ``set_levels`` has set.
_set: set[str] = set()


class Forwarding(logging.Handler):
    """Sends every record of the handler's process to the worker.

    Args:
        send: Sends the pickled fields of a record.
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Sends the record: arguments and traceback as text, an extra that cannot be pickled as its repr."""
        try:
            fields = dict(vars(record), msg=self.format(record), args=None)
            fields.update(exc_info=None, exc_text=None, stack_info=None, message=None)
            self._send(pickle.dumps({name: _portable(value) for name, value in fields.items()}))
        except Exception:
            self.handleError(record)


def forward(send: Callable[[bytes], None]) -> None:
    """Sends the log records of this process."""
    logging.getLogger().addHandler(Forwarding(send))


def levels_now() -> Levels:
    """Returns the level below which logging is off, and the levels of this process's loggers."""
    root = logging.getLogger()
    # A copy, because another thread may make a logger meanwhile.
    loggers = list(root.manager.loggerDict.items())
    levels = {name: one.level for name, one in loggers if isinstance(one, logging.Logger) and one.level}
    return root.manager.disable, {"": root.level, **levels}


def set_levels(levels: Levels) -> None:
    """Gives the loggers of a handler's process the levels of the worker."""
    disabled, by_name = levels
    logging.disable(disabled)
    for name, level in by_name.items():
        logging.getLogger(name or None).setLevel(level)
    for name in _set - by_name.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    _set.clear()
    _set.update(by_name)


def handle(packed: bytes, job: RunningJob | None) -> None:
    """Handles a record of a handler's process in the worker, with the fields of the job if it is known."""
    try:
        record = logging.makeLogRecord(pickle.loads(packed))
    except Exception as error:  # an extra of a class that only the handler's process can import
        log.warning("could not read a log record of a handler's process: %s", error)
        return
    if job is not None:
        for name, value in job.log_fields().items():
            vars(record).setdefault(name, value)
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
