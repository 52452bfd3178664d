"""Watches the stages of an application: progress while it runs, and what it read, wrote and shuffled."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("oxcart.spark")

#: Seconds between looks at the active stages.
EVERY = 1.0
#: Looks between two readings of the ended stages. Spark forgets old stages after a thousand newer ones.
READ_EVERY = 30
#: Seconds for which a look that is under way may go on at the end.
_JOIN = 2.0


class Metrics(msgspec.Struct):
    """What the stages of an application did so far.

    Attributes:
        stages: Stages that ended.
        tasks: Tasks that ended well.
        failed_tasks: Tasks that did not.
        input_rows: Rows that were read.
        input_bytes: Bytes that were read.
        output_rows: Rows that were written.
        output_bytes: Bytes that were written.
        shuffle_read_bytes: Bytes that were read from other stages.
        shuffle_write_bytes: Bytes that were written for other stages.
        spilled_bytes: Bytes that did not fit into memory.
        executor_seconds: Time of all tasks.
    """

    stages: int = 0
    tasks: int = 0
    failed_tasks: int = 0
    input_rows: int = 0
    input_bytes: int = 0
    output_rows: int = 0
    output_bytes: int = 0
    shuffle_read_bytes: int = 0
    shuffle_write_bytes: int = 0
    spilled_bytes: int = 0
    executor_seconds: float = 0.0


class Monitor:
    """Reads Spark's own record of stages, which it keeps with its user interface on or off.

    Args:
        spark: The session.
        report: Receives the progress whenever it has changed: percent, and a text.
    """

    def __init__(self, spark: SparkSession, report: Callable[[float, str], None]) -> None:
        self._context = spark.sparkContext
        self._report = report
        self._seen: set[tuple[int, int]] = set()
        self._tasks: dict[int, tuple[int, int]] = {}  # done and all, by stage
        self._percent = 0.0
        self._shown: tuple[float, str] | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oxcart-monitor", daemon=True)
        self.metrics = Metrics()

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch."""
        self._ending.set()
        self._thread.join(_JOIN)

    def finish(self) -> Metrics:
        """Reads the last stages, after the watch; returns the metrics of all."""
        try:
            # Events of the last stage may still be on their way to Spark's record.
            self._context._jsc.sc().listenerBus().waitUntilEmpty(5000)
            self._read_ended()
        except Exception as error:
            log.warning("could not read the metrics of the last stages: %s", error)
        return self.metrics

    def _run(self) -> None:
        looks = 0
        while not self._ending.wait(EVERY):
            looks += 1
            try:
                self._look()
                if looks % READ_EVERY == 0:
                    self._read_ended()
            except Exception as error:  # the application ends, or its JVM is gone; the handler learns of it
                log.debug("could not read the stages: %s", error)

    def _look(self) -> None:
        tracker = self._context.statusTracker()
        active = []
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                self._tasks[stage] = info.numCompletedTasks, info.numTasks
                active.append((stage, info))
        for stage in self._tasks.keys() - {one for one, _ in active}:
            self._tasks[stage] = self._tasks[stage][1], self._tasks[stage][1]
        known = sum(of for _, of in self._tasks.values())
        if not known or not active:
            return
        done = sum(done for done, _ in self._tasks.values())
        # An application adds stages as it goes, so the share may fall. A bar that goes back helps nobody.
        self._percent = max(self._percent, min(99.0, round(100 * done / known, 1)))
        text = "; ".join(
            f"stage {stage}: {info.numCompletedTasks} of {info.numTasks} tasks" for stage, info in active[:3]
        )
        if (self._percent, text) != self._shown:
            self._shown = self._percent, text
            self._report(self._percent, text)

    def _read_ended(self) -> None:
        gateway: Any = self._context._gateway
        empty = gateway.new_array(gateway.jvm.double, 0)
        nothing = gateway.jvm.java.util.ArrayList()
        store = self._context._jsc.sc().statusStore()
        stages = store.stageList(None, False, False, empty, nothing)
        for place in range(stages.size()):
            stage: Any = stages.apply(place)
            key = stage.stageId(), stage.attemptId()
            if key in self._seen or stage.status().name() not in ("COMPLETE", "FAILED"):
                continue
            self._seen.add(key)
            self._add(stage)

    def _add(self, stage: Any) -> None:
        found = self.metrics
        found.stages += 1
        found.tasks += stage.numCompleteTasks()
        found.failed_tasks += stage.numFailedTasks()
        found.input_rows += stage.inputRecords()
        found.input_bytes += stage.inputBytes()
        found.output_rows += stage.outputRecords()
        found.output_bytes += stage.outputBytes()
        found.shuffle_read_bytes += stage.shuffleReadBytes()
        found.shuffle_write_bytes += stage.shuffleWriteBytes()
        found.spilled_bytes += stage.diskBytesSpilled()
        found.executor_seconds = round(found.executor_seconds + stage.executorRunTime() / 1000, 3)
