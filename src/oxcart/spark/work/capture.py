"""Writes what a driver prints and logs, and what its JVM prints, to the job's log."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable

#: Seconds between writes to the job's log.
EVERY = 0.5
#: Lines of one write at most. A driver that prints more loses the middle, which one line counts.
MOST = 200
#: Characters of a line at most.
LONGEST = 2000

#: What every session prints when it opens, whatever the level.
_NOISE = ("WARNING: Using incubator modules", "Setting default log level to", "To adjust logging level use")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Capture:
    """Redirects standard output and error of this process, and of those it starts, within the block.

    Args:
        log: Appends lines to the job's log.
    """

    def __init__(self, log: Callable[..., None]) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._left_out = 0
        self._part = b""
        self._ending = threading.Event()

    def __enter__(self) -> Capture:
        sys.stdout.flush()
        sys.stderr.flush()
        self._saved = os.dup(1), os.dup(2)
        self._read, write = os.pipe()
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.close(write)
        # The interpreter's own streams would keep text back until a block is full.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        self._handler = _LineHandler(self._add)
        logging.getLogger().addHandler(self._handler)
        self._reader = threading.Thread(target=self._pump, name="oxcart-capture", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *exc: object) -> None:
        logging.getLogger().removeHandler(self._handler)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        for number, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, number)
            os.close(saved)
        self._ending.set()
        self._reader.join(10)

    def _add(self, line: str) -> None:
        if line.startswith(_NOISE):
            return
        with self._lock:
            if len(self._lines) < MOST:
                self._lines.append(line[:LONGEST])
            else:
                self._left_out += 1

    def _pump(self) -> None:
        flushed = time.monotonic()
        while True:
            ready, _, _ = select.select([self._read], [], [], EVERY / 5)
            chunk = os.read(self._read, 1 << 16) if ready else b""
            *lines, self._part = (self._part + chunk).split(b"\n")
            for line in lines:
                self._add(line.decode("utf-8", "replace").rstrip("\r"))
            is_over = self._ending.is_set() and not ready  # the JVM may keep the pipe open
            if is_over and self._part:
                self._add(self._part.decode("utf-8", "replace"))
            if is_over or time.monotonic() - flushed >= EVERY:
                flushed = time.monotonic()
                self._flush()
            if is_over or (ready and not chunk):
                self._flush()
                return

    def _flush(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
            left_out, self._left_out = self._left_out, 0
        if left_out:
            lines.append(f"… {left_out} lines left out …")
        if not lines:
            return
        try:
            self._log(*lines)
        except Exception as error:  # the protocol has no logs, or the server is away
            text = "\n".join([*lines, f"(not in the job's log: {error})", ""])
            with contextlib.suppress(OSError):
                os.write(self._saved[1], text.encode("utf-8", "backslashreplace"))


class _LineHandler(logging.Handler):
    """Passes log records on as lines."""

    def __init__(self, add: Callable[[str], None]) -> None:
        super().__init__()
        self._add = add
        self.setFormatter(logging.Formatter(_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Adds the lines of a record."""
        try:
            for line in self.format(record).splitlines():
                self._add(line)
        except Exception:
            self.handleError(record)
