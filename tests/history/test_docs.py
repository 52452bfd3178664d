"""The SQL and the settings on the pages of the tables: DuckDB runs it, and the loader takes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from oxcart.history.reader import LakeReader
from oxcart.spark.lake.columns import OPEN, STORED, VIEWED, public
from oxcart.spark.views.objectives import FILE, load_objectives
from tests.documented import ROOT, blocks
from tests.history.histories import DAY, metric, timing
from tests.history.lakes import make_lake

PAGES = [ROOT / "docs" / name for name in ("pipeline.md", "tables.md")]


def code(language: str) -> list[str]:
    return [block.text for page in PAGES for block in blocks(page) if block.language == language]


def test_every_query_of_the_pages_runs(tmp_path: Path) -> None:
    (objectives, _) = code("toml")
    job = {"queue": "mail", "id": "1", "name": "send", "state": "completed"}
    lake = make_lake(
        tmp_path / "lake", jobs=[job], timings=[timing(DAY, completed=1)], queue_metrics=[metric(DAY)]
    )
    (lake.root / FILE).write_text(objectives, encoding="utf-8")
    queries = [line for text in code("sql") for line in text.splitlines() if line]
    assert len(queries) == 5
    with LakeReader(lake) as reader:
        for query in queries:
            reader.sql(query).dicts()


def test_every_setting_of_the_page_is_taken(tmp_path: Path) -> None:
    objectives, alerts = code("toml")
    (tmp_path / FILE).write_text(objectives + alerts, encoding="utf-8")
    found = load_objectives(tmp_path)
    assert [one.objective for one in found.objectives] == ["mail-sent", "welcome-prompt", "report-quick"]
    assert found.alerting is not None
    assert (found.alerting.queue, found.alerting.anomalies) == ("ops", True)


def documented_columns() -> dict[str, dict[str, str]]:
    """The columns of docs/columns.md with their types, by table; the first table has those of all."""
    text = (ROOT / "docs" / "columns.md").read_text(encoding="utf-8")
    begin, *sections = re.split(r"^## `(\w+)`$", text, flags=re.MULTILINE)
    found = {"": begin, **dict(zip(sections[::2], sections[1::2], strict=True))}
    return {
        table: dict(re.findall(r"^\| `(\w+)` \| (\S+) \| \S", part, re.M)) for table, part in found.items()
    }


def test_the_page_of_columns_has_every_column_of_every_table() -> None:
    shown = documented_columns()
    common = shown.pop("")
    assert list(common) == ["day", "queue", "lane"]
    shown["quarantine"] = {**shown["events"], **shown["quarantine"]}  # the page refers to `events`
    tables = [table for table in (*STORED, *VIEWED) if table != OPEN]

    def own(columns: Mapping[str, str]) -> dict[str, str]:
        return {name: kind for name, kind in columns.items() if name not in common}

    assert {table: own(columns) for table, columns in shown.items()} == {
        table: own(public(table)) for table in tables
    }
