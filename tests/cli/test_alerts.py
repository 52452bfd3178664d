"""Alerts of `oxcart pipeline run` are jobs on the pipeline's own server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from oxcart.cli.pipeline import _alerts
from oxcart.cli.settings import Settings
from oxcart.spark.views.objectives import FILE
from tests.history.histories import metric, timing
from tests.history.lakes import make_lake

OBJECTIVES = '[objectives.sent]\nqueue = "mail"\nsuccess = 0.99\n[alerts]\nqueue = "ops"\n'


def test_an_alert_is_one_job_also_if_its_note_is_lost(url: str, store: redis.Redis, tmp_path: Path) -> None:
    lake = make_lake(
        tmp_path / "lake", timings=[timing(0, completed=50, failed=50)], queue_metrics=[metric(0)]
    )
    (lake.root / FILE).write_text(OBJECTIVES, encoding="utf-8")
    given: Any = SimpleNamespace(find_root=lambda: SimpleNamespace(obj=Settings(url=url)))
    for _ in range(2):
        assert _alerts(given, lake.root, "main")() == ["burn:sent"]
        (lake.root / "_alerts" / "main.json").unlink()
    (job_id,) = cast(list[str], store.lrange("bull:ops:wait", 0, -1))
    job = cast(dict[str, str], store.hgetall(f"bull:ops:{job_id}"))
    assert job["name"] == "alert"
    assert '"objective":"sent"' in job["data"]
