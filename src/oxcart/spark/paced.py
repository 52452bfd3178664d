"""Work that repeats at a pace of its own, in a thread of its own.

A pipeline has several kinds of work: it builds tables, joins files, fills gaps. Each has its own thread and
pace, so that a long build does not delay the others.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql.utils import is_remote

from oxcart.spark.lake.versions import LakeConflict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("oxcart.spark.pipeline")

Stop = Callable[[], bool]


class Paced:
    """Work in a thread, from its construction until `stop`.

    A run that another writer of the lake was faster than is repeated when the next one is due. Any other
    error ends the thread; `check` raises it.

    Args:
        spark: The session; `stop` interrupts the thread's queries.
        name: What the work is called in thread names and log lines, for example ``build``.
        work: The work; it receives a function that says whether it should end early.
        every: Seconds from the start of a run to the start of the next one.
        share: The largest share of time that the work may take. With 1 a late run begins at once.
    """

    def __init__(
        self, spark: SparkSession, name: str, work: Callable[[Stop], object], every: float, share: float = 1.0
    ) -> None:
        self._spark = spark
        self._name = name
        self._work = work
        self._every = every
        self._share = share
        self._tag = f"oxcart-{name}-{uuid.uuid4().hex}"
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"oxcart-{name}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises the error that ended the thread, if one did."""
        if self._error is not None:
            raise self._error

    def stop(self, timeout: float = 60.0) -> bool:
        """Interrupts the work and waits for its end; returns whether it ended within so many seconds."""
        self._stop.set()
        until = time.monotonic() + timeout
        while self._thread.is_alive() and time.monotonic() < until:
            self._interrupt()  # again and again: a query may begin after a call
            self._thread.join(0.1)
        if self._thread.is_alive():
            log.warning("the %s did not end within %.0f s and was abandoned", self._name, timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._name_queries()
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    self._work(self._stop.is_set)
                except LakeConflict as error:
                    log.info("the %s is repeated when it is next due: %s", self._name, error)
                self._stop.wait(self._rest(time.monotonic() - began))
        except Exception as error:
            if not self._stop.is_set():
                self._error = error

    # A session's tags can be interrupted by the thread that set them alone, unless Spark Connect has them.

    def _name_queries(self) -> None:
        if is_remote():
            self._spark.addTag(self._tag)
        else:
            self._spark.sparkContext.addJobTag(self._tag)

    def _interrupt(self) -> None:
        if is_remote():
            self._spark.interruptTag(self._tag)
        else:
            self._spark.sparkContext.cancelJobsWithTag(self._tag)

    def _rest(self, took: float) -> float:
        """The seconds until the next run; a run that took longer than its pace is logged."""
        if took > self._every and self._share >= 1:
            log.warning(
                "the %s took %.1f s, longer than its pace of %.1f s: the next one begins at once",
                self._name,
                took,
                self._every,
            )
        return max(self._every, took / self._share) - took
