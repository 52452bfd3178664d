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

DOCS = Path(__file__).parents[2] / "docs" / "pipeline.md"

#: Sessions as users make them; nothing of Oxcart is imported.
SESSIONS = {
    "classic": 'SparkSession.builder.master("local[1]").getOrCreate()',
    "connect": 'SparkSession.builder.remote("local[1]").getOrCreate()',
}


def snippet() -> str:
    """The lines of Python below ``In Spark``."""
    found = re.search(r"^## In Spark$.*?^```python\n(.*?)^```$", DOCS.read_text(), re.M | re.S)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("kind", SESSIONS)
def test_the_documented_lines_run_in_a_users_own_session(
    kind: str, url: str, store: redis.Redis, tmp_path: Path
) -> None:
    script = tmp_path / "lines.py"
    script.write_text(
        f"from pyspark.sql import SparkSession\nspark = {SESSIONS[kind]}\n{snippet()}\n"
        "print('jobs', jobs.count())\n"
        "print('events', spark.table('mail_events').count())\n"
        "spark.stop()\n"
    )
    environ = {**os.environ, "OXCART_URL": url}
    prepare_environment(find_java(), environ, local=True)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "jobs 2\n" in done.stdout
    assert "events 4\n" in done.stdout
    assert store.zcard("bull:mail:prioritized") == 2
