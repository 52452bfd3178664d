"""The job of a Spark application: that of every plain handler, and what Spark adds."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from oxcart.engine.running import RunningJob
from oxcart.engine.sync_running import Link, SyncRunningJob
from oxcart.model.progress import check_progress
from oxcart.spark.work.output import Output


class SparkJob(SyncRunningJob):
    """A claimed job in the driver of a Spark application; handlers ask for it with a parameter named ``job``.

    Attributes:
        ui: The address of Spark's user interface, or None if it is off.
        application: Spark's id of the application.
        outputs: What the attempt publishes when it succeeds.
        reports: Whether the handler reports progress itself, so that Spark's stages are not reported.
        facts: The application, its user interface and at the end its metrics and outputs. The job's progress
            has them in the field ``spark``, whether the handler or Spark's stages report it.
    """

    __slots__ = ("_progress", "_sealed", "_writing", "application", "facts", "outputs", "reports", "ui")

    def __init__(self, job: RunningJob, link: Link) -> None:
        super().__init__(job, link)
        self.ui: str | None = None
        self.application: str | None = None
        self.outputs: list[Output] = []
        self.reports = False
        self.facts: dict[str, Any] = {}
        self._progress: dict[Any, Any] = {}
        # Read now: a call that fails after outputs are published would fail the attempt.
        self._sealed = bool(link.get("seals_progress"))
        # Stages are reported by another thread: without it they could replace what the handler reports.
        self._writing = threading.Lock()

    def output(self, path: str | Path) -> str:
        """Returns a folder of this attempt in place of ``path``; it gets that name when the job succeeds.

        What was at ``path`` before is replaced as a whole then. An attempt that fails, is cancelled or is
        killed leaves ``path`` as it was, and the next attempt removes what it left beside it.

        Args:
            path: A path of a file system that the driver and all executors share. Its parent must exist or be
                creatable.

        Raises:
            ValidationError: It is a URL of another kind of storage, or was asked for before.
        """
        made = Output.make(path, self.id, self.fencing, self.fence)
        for other in self.outputs:
            other.check_beside(made)
        made.clear()
        self.outputs.append(made)
        return str(made.staging)

    def update_progress(self, progress: Any, message: str | None = None) -> None:
        """Writes the job's progress; from now on the progress of stages is not written.

        Args:
            progress: A number from 0 to 100, or an object. It gets the field ``spark`` unless it has one.
            message: Text beside it.

        Raises:
            ValidationError: The progress or the message is out of its bounds; nothing was written.
        """
        own = check_progress(progress, message=message)
        with self._writing:
            self._write_progress(own if isinstance(own, dict) else {"percent": own})
            self.reports = True

    def show_stages(self, percent: float, message: str) -> None:
        """Writes how far Spark's stages are, unless the handler reports progress itself."""
        with self._writing:
            if not self.reports and not self.is_cancelled:
                self._write_progress({"percent": percent, "message": message})

    def show_end(self) -> None:
        """Writes the facts of the end beside the handler's last progress, or beside 100 percent."""
        with self._writing:
            self._write_progress(self._progress if self.reports else {"percent": 100})

    def end_facts(self) -> dict[str, Any]:
        """Returns the facts for the log, which is never sealed: no outputs if the queue seals progress."""
        return {name: value for name, value in self.facts.items() if name != "outputs" or not self._sealed}

    def _write_progress(self, progress: dict[Any, Any]) -> None:
        super().update_progress({"spark": self.facts, **progress})
        self._progress = progress
