"""What clients wrote: one line per fact, in one file that all processes append to."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Line:
    """One fact.

    Attributes:
        what: ``asked``, then ``acked``, ``refused`` (not applied) or ``unsure`` of a producer; ``began`` or
            ``ended`` of a worker; ``fault`` and ``repaired`` of the nemesis.
        queue: The queue.
        job: The job's id. A producer of Bridge knows it only once the add is acknowledged.
        row: The row's id.
        start: Which start of the job it is.
        step: What the attempt does.
        side: The kind of the worker or producer.
        pid: Its process.
    """

    what: str
    queue: str = ""
    job: str = ""
    row: str = ""
    start: int = 0
    step: str = ""
    side: str = ""
    pid: int = 0


class Record:
    """Appends and reads the lines; short writes with O_APPEND do not mix."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: str, **facts: Any) -> None:
        """Appends a fact."""
        os.write(self._file, json.dumps({"what": what, "pid": os.getpid(), **facts}).encode() + b"\n")

    def lines(self) -> list[Line]:
        """Returns all lines in their order. A line that a killed process cut short is left out."""
        found = []
        for text in self.path.read_bytes().split(b"\n"):
            try:
                raw = json.loads(text)
            except ValueError:
                continue
            found.append(Line(**{name: raw[name] for name in Line.__dataclass_fields__ if name in raw}))
        return found

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)
