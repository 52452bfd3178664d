"""The lines of docs/pipeline.md run as they are in a session that a user made, classic and Spark Connect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis

pytest.importorskip("pyspark")
pytest.importorskip("grpc")

from oxcart.spark.session import find_java, prepare_environment
from tests.history.lakes import MIDNIGHT, make_lake
from tests.spark.standalone import Standalone
from tests.spark.work.test_docs import PRINTED, lines_of

DOCS = Path(__file__).parents[2] / "docs" / "pipeline.md"

#: Sessions as users make them; nothing of Oxcart is imported.
SESSIONS = {
    "classic": 'SparkSession.builder.master("local[1]").getOrCreate()',
    "connect": 'SparkSession.builder.remote("local[1]").getOrCreate()',
}


COUNTS = "print('jobs', jobs.count())\nprint('events', spark.table('mail_events').count())"


def snippets() -> list[str]:
    """The lines of Python below ``In Spark``: those of the format, and those of a lake's tables."""
    found = re.search(r"^## In Spark$(.*?)(?=^## |\Z)", DOCS.read_text(), re.M | re.S)
    assert found is not None
    return re.findall(r"^```python\n(.*?)^```$", found[1], re.M | re.S)


def run(script: Path, session: str, lines: str, environ: dict[str, str]) -> str:
    """Runs lines in a session of a user's own program; returns what they print."""
    script.write_text(f"from pyspark.sql import SparkSession\nspark = {session}\n{lines}\nspark.stop()\n")
    environ = {**os.environ, **environ}
    prepare_environment(find_java(), environ, local=True)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=script.parent,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("kind", SESSIONS)
def test_the_documented_lines_run_in_a_users_own_session(
    kind: str, url: str, store: redis.Redis, tmp_path: Path
) -> None:
    printed = run(tmp_path / "lines.py", SESSIONS[kind], f"{snippets()[0]}\n{COUNTS}", {"OXCART_URL": url})
    assert "jobs 2\n" in printed
    assert "events 4\n" in printed
    assert store.zcard("bull:mail:prioritized") == 2


def test_the_documented_lines_run_on_a_standalone_cluster(
    url: str, store: redis.Redis, tmp_path: Path
) -> None:
    """The format, and executors that run jobs: tasks are in processes of the cluster's workers."""
    with Standalone(tmp_path, workers=2) as cluster:
        settings = {
            "spark.executor.memory": "600m",
            "spark.cores.max": "2",
            "spark.driver.host": "127.0.0.1",
            "spark.executorEnv.OXCART_URL": url,
        }
        configured = "".join(f".config({name!r}, {value!r})" for name, value in settings.items())
        session = f"SparkSession.builder.master({cluster.url!r}){configured}.getOrCreate()"
        lines = f"{snippets()[0]}\n{COUNTS}\n{lines_of('Executors that run jobs')}\n"
        lines += "print('application', spark.sparkContext.applicationId)"
        printed = run(tmp_path / "lines.py", session, lines, {"OXCART_URL": url})
    assert "jobs 2\n" in printed
    assert "events 4\n" in printed
    assert PRINTED in printed, "what executors ran"
    assert "application app-" in printed
    assert store.zcard("bull:mail:prioritized") == 2


@pytest.mark.parametrize("kind", SESSIONS)
def test_a_lakes_tables_are_registered_in_a_users_own_session(kind: str, tmp_path: Path) -> None:
    spent = {"name": "charge", "attempts": 3, "run_total": 5000, "wasted_total": 1000}
    make_lake(
        tmp_path / "lake",
        jobs=[{"job_id": "1", "state": "completed"}, {"job_id": "2", "state": "failed"}],
        attempts=[{"job_id": "2", "name": "charge", "outcome": "failed", "ended_ms": MIDNIGHT}],
        spending=[{"queue": "mail", **spent, "last_ms": MIDNIGHT}],
    )
    further = """
print('states', sorted(row.state for row in spark.table('jobs').collect()))
print('failed', [(row.name, row.ended_at.year) for row in spark.table('attempts').collect()])
print('views', sorted(oxcart.spark.tables(spark, 'lake', 'gaps', 'flows')))
print('zones', spark.conf.get('spark.sql.parquet.outputTimestampType'))
try:
    oxcart.spark.tables(spark, 'lake', 'jobz')
except oxcart.errors.ValidationError as error:
    print('error', error)
try:
    oxcart.spark.tables(spark, 'nowhere')
except oxcart.errors.OxcartError as error:
    print('error', error)
"""
    printed = run(
        tmp_path / "lines.py", SESSIONS[kind], f"{snippets()[1]}\nimport oxcart.errors\n{further}", {}
    )
    assert "states ['completed', 'failed']\n" in printed
    assert "failed [('charge', 2026)]\n" in printed
    assert "views ['flows', 'gaps']\n" in printed
    assert "zones INT96\n" in printed, "a session that reads keeps its settings"
    assert "error table must be one of" in printed
    assert "error there are no tables in nowhere yet" in printed
