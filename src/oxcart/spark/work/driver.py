"""The driver of a Spark application that is a job: runs in the fresh process of one attempt.

It opens the session, runs the handler or the script, reports stages as progress, cancels Spark's jobs when
the attempt should stop, and publishes outputs at the end. The worker kills this process and its JVM
afterwards.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import runpy
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from oxcart.engine.process_child import Call
from oxcart.engine.processes import HandlerCrashed, ending_of
from oxcart.model.errors import MissingExtra, OxcartError
from oxcart.spark.session import find_java, machine_settings, prepare_environment, register
from oxcart.spark.work.application import ApplicationSettings
from oxcart.spark.work.capture import Capture
from oxcart.spark.work.failures import mapped
from oxcart.spark.work.job import SparkJob
from oxcart.spark.work.monitor import Monitor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("oxcart.spark")

#: Settings of every application, before its own.
SETTINGS = {
    "spark.ui.port": "0",  # several applications run beside each other
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.python.filterPushdown.enabled": "true",  # without it format("oxcart") refuses to read
}
#: Seconds between attempts to cancel Spark's jobs: a handler may start others.
AGAIN = 0.5
#: Seconds to wait for the end of a JVM whose connection broke.
_ENDING = 2.0


def enter(call: Call) -> Any:
    """Runs one attempt; returns the handler's result.

    Raises:
        JobCancelled: The attempt should stop.
        PermanentError: Spark refuses the application.
        TemporaryError: Something failed that may work the next time.
        HandlerCrashed: The JVM ended.
    """
    job = SparkJob(call.job, call.link)
    call.place.job = job
    py4j = logging.getLogger("py4j")
    py4j.setLevel(max(logging.WARNING, py4j.level))  # it logs every connection
    with Capture(job.log):
        try:
            return _run(call, job, call.settings)
        except BaseException as error:
            for output in job.outputs:
                output.discard()
            job.raise_if_cancelled()
            if not isinstance(error, Exception):
                raise
            failure = _jvm_ended(error) or mapped(error)
            if failure is error:
                raise
            raise failure from error


def _run(call: Call, job: SparkJob, settings: ApplicationSettings) -> Any:
    spark = _open(job, settings)
    job.application = spark.sparkContext.applicationId
    job.ui = spark.sparkContext.uiWebUrl
    print(f"Spark application {job.application}" + (f", user interface {job.ui}" if job.ui else ""))
    job.facts = {"application": job.application} | ({"ui": job.ui} if job.ui else {})
    with contextlib.suppress(OxcartError):  # progress is worth no attempt
        job.show_stages(0, "the session is open")
    monitor = Monitor(spark, job.show_stages)
    over = threading.Event()
    threading.Thread(target=_interrupt, args=(spark, job, over), daemon=True).start()
    monitor.start()
    try:
        if settings.script:
            _run_script(settings.script, call.arguments)
            result = None
        else:
            result = _call(call, job, spark)
        job.raise_if_cancelled()
        published = [str(output.target) for output in job.outputs if output.publish()]
    finally:
        over.set()
        monitor.stop()
    metrics = msgspec.to_builtins(monitor.finish())
    job.facts = {**job.facts, "metrics": metrics, "outputs": published}
    print(f"Spark application ended: {msgspec.json.encode(job.end_facts()).decode()}")
    with contextlib.suppress(OxcartError):
        job.show_end()
    with contextlib.suppress(Exception):  # the work is done and published
        spark.stop()
    if settings.script:
        return {"metrics": metrics, "outputs": published}
    return result


def _call(call: Call, job: SparkJob, spark: SparkSession) -> Any:
    arguments = dict(call.arguments)
    if call.takes_job is not None:
        arguments[call.takes_job] = job
    if "spark" in inspect.signature(call.function).parameters:
        arguments["spark"] = spark
    return call.function(**arguments)


def _run_script(path: str, arguments: dict[str, Any]) -> None:
    """Runs a script as a program of its own would; ``getOrCreate`` gives it the session that is open."""
    before, sys.argv = sys.argv, [path, *(arguments.get("args") or [])]
    sys.path.insert(0, os.path.dirname(path))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise RuntimeError(f"the script ended with {end.code!r}") from None
    finally:
        sys.argv = before


def _open(job: SparkJob, settings: ApplicationSettings) -> SparkSession:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtra("a Spark application", "spark") from None
    master = settings.master or "local[*]"
    local = master.startswith("local")
    prepare_environment(find_java(), os.environ, local=local)
    builder: Any = SparkSession.builder.master(master).appName(f"{job.queue}/{job.name} {job.id}")
    for name, value in {**machine_settings(), **SETTINGS, **settings.conf}.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return register(session)


def _jvm_ended(error: Exception) -> HandlerCrashed | None:
    """Returns the end of the driver's JVM as a failure; None if it runs, or never began."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    with contextlib.suppress(subprocess.TimeoutExpired):
        # A broken connection is noticed a moment before the end of the process.
        process.wait(_ENDING if isinstance(error, ConnectionError) or _is_of_gateway(error) else 0)
        return HandlerCrashed(f"the driver's JVM ended with {ending_of(process.returncode)}")
    return None


def _is_of_gateway(error: Exception) -> bool:
    return type(error).__module__.startswith("py4j") and not hasattr(error, "java_exception")


def _interrupt(spark: SparkSession, job: SparkJob, over: threading.Event) -> None:
    """Cancels Spark's jobs once the attempt should stop, until it has."""
    reason = job.cancelled()
    while not over.is_set():
        with contextlib.suppress(Exception):  # the JVM is going already
            spark.sparkContext.cancelAllJobs()
        log.debug("cancelled the Spark jobs of job %s: %s", job.id, reason)
        over.wait(AGAIN)
