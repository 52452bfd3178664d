"""The code of docs/spark-jobs.md runs: in a classic session, and with Spark Connect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from oxcart.spark.session import find_java, prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[3] / "docs" / "spark-jobs.md"
PRINTED = "100 0 {}\n9 1\n"


def lines_of(heading: str) -> str:
    """All Python below a heading of the second level."""
    section = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", DOCS.read_text(), re.M | re.S)
    assert section is not None
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", section[1], re.M | re.S))


def test_executors_run_the_documented_jobs(
    spark: SparkSession, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OXCART_URL", url)
    exec(lines_of("Executors that run jobs"), {"__name__": "__main__", "spark": spark})
    assert capsys.readouterr().out == PRINTED


def test_executors_run_the_documented_jobs_with_connect(url: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    script = tmp_path / "lines.py"
    script.write_text(
        "from pyspark.sql import SparkSession\n"
        'spark = SparkSession.builder.remote("local[1]").getOrCreate()\n'
        f"{lines_of('Executors that run jobs')}\nspark.stop()\n"
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
    assert done.stdout == PRINTED


def test_the_documented_applications_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "report.py").touch()
    (tmp_path / "2026-11-02.json").write_text('{"customer": "ada", "amount": 3}\n')
    found: dict[str, Any] = {"__name__": "app"}
    exec(lines_of("Spark applications as jobs"), found)
    assert found["daily"].payload("2026-11-02", "in", "out")["day"] == "2026-11-02"
    assert found["nightly"].handler.schedule is not None
    assert found["report"].payload(args=["2026-11-02"]) == {"args": ["2026-11-02"]}
    job = SimpleNamespace(output=str)
    assert found["daily"](spark, job, "2026-11-02", str(tmp_path), str(tmp_path / "out")) == 1
    assert spark.read.parquet(str(tmp_path / "out")).collect()[0].customer == "ada"


def test_a_service_that_enqueues_applications_needs_no_pyspark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['pyarrow'] = None\n"
        "from oxcart import Queue\n"
        "task = Queue('q').job(run='spark', name='n')(lambda spark, day: None)\n"
        "print(task.payload(day='monday'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "{'day': 'monday'}\n", done.stderr


def test_the_code_of_the_orchestrator_is_that_of_the_example() -> None:
    assert lines_of("A small orchestrator") in (DOCS.parents[1] / "examples" / "medallion.py").read_text()
