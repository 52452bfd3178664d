"""The example of a medallion ETL: a backfill of days as a flow of Spark applications."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.parquet as pq

ROOT = Path(__file__).parents[3]
#: A short form here; ``python examples/medallion.py`` fills thirty days.
DAYS = int(os.environ.get("OXCART_MEDALLION_DAYS", "2"))


def test_a_backfill_fills_every_layer_of_every_day(url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "examples/medallion.py", "--days", str(DAYS)],
        cwd=ROOT,
        env={**os.environ, "OXCART_URL": url, "MEDALLION_LAKE": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    amount = Decimal(sum(n % 7 for n in range(100))) + Decimal("0.50") * 100
    assert f"'days': {DAYS}" in done.stdout
    assert f"'amount': '{float(amount * DAYS)}'" in done.stdout
    for layer, rows in (("bronze", 102), ("silver", 100), ("gold", 5)):
        days = sorted(one.name for one in (tmp_path / layer).iterdir())
        assert len(days) == DAYS
        assert all(pq.read_table(tmp_path / layer / day).num_rows == rows for day in days), layer
    gold = pq.read_table(tmp_path / "gold" / "day=2026-10-01").to_pylist()
    assert sum(row["amount"] for row in gold) == amount
    assert sum(row["orders"] for row in gold) == 100
