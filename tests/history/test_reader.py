"""SQL over a lake without Spark: one version, only the tables named, and errors in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from oxcart.history import reader as reader_module
from oxcart.history.reader import LakeReader
from oxcart.model.errors import MissingExtra, ValidationError
from oxcart.spark.lake.versions import Change, Lake, LakeError
from tests.history.lakes import MIDNIGHT, make_lake, write


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(
        tmp_path / "it's a [lake]*",
        jobs=[
            {"job_id": "1", "name": "welcome", "state": "completed", "tags": [("tenant", "acme")]},
            {"job_id": "2", "name": "welcome", "state": "dead_letter", "category": "timeout"},
        ],
        attempts=[{"job_id": "1", "attempt": 1, "outcome": "completed", "run_ms": 12}],
        events=[{"queue": "video@all;c=gpu", "event": "added", "job_id": "9", "at_ms": MIDNIGHT}],
    )


def ask(lake: Lake, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with LakeReader(lake) as reader:
        return list(reader.sql(text, parameters))


def test_a_query_reads_the_files_of_one_version_alone(lake: Lake) -> None:
    old = lake.head()
    gone = old.of("jobs")[0]
    new = write(lake, "jobs", [{"job_id": "3", "name": "bye", "state": "completed"}])
    lake.publish(Change("build", add=[new], remove=frozenset({gone.path})))
    write(lake, "jobs", [{"job_id": "4"}])  # never published
    assert ask(lake, "SELECT job_id FROM jobs") == [("3",)]
    with LakeReader(lake, old) as reader:
        assert list(reader.sql("SELECT job_id FROM jobs ORDER BY 1")) == [("1",), ("2",)]


def test_only_tables_that_the_query_names_are_opened(lake: Lake) -> None:
    """`attempts` is a column of jobs and a word of the text; its table is not opened."""
    with LakeReader(lake) as reader:
        text = "WITH gaps AS (SELECT attempts, 'events' AS x FROM Jobs) SELECT count(*) FROM gaps"
        assert list(reader.sql(text)) == [(2,)]
        assert reader._opened == {"jobs", "gaps"}
        (lake.root / lake.head().of("attempts")[0].path).unlink()
        assert list(reader.sql("SELECT count(*) FROM jobs")) == [(2,)]


def test_a_table_without_files_has_its_columns(lake: Lake) -> None:
    with LakeReader(lake) as reader:
        found = reader.sql("SELECT * FROM gaps")
        assert found.columns[:5] == ["day", "queue", "lane", "stream", "life"]
        assert list(found) == []
        assert list(reader.sql("SELECT count(*), sum(count) FROM gaps")) == [(0, None)]


def test_bronze_has_queue_and_lane_apart(lake: Lake) -> None:
    assert ask(lake, "SELECT queue, lane, event FROM events") == [("video", "all;c=gpu", "added")]


def test_a_file_of_an_older_release_lacks_a_column(lake: Lake) -> None:
    older = write(lake, "jobs", [{"job_id": "0", "name": "n"}], without=("tags", "correlation_id"))
    lake.publish(Change("build", add=[older]))
    assert ask(lake, "SELECT job_id, tags['tenant'] FROM jobs ORDER BY job_id") == [
        ("0", None),
        ("1", "acme"),
        ("2", None),
    ]


def test_nulls_sort_as_in_spark(lake: Lake) -> None:
    assert ask(lake, "SELECT category FROM jobs ORDER BY category") == [(None,), ("timeout",)]
    assert ask(lake, "SELECT category FROM jobs ORDER BY category DESC") == [("timeout",), (None,)]


def test_parameters_stand_for_values(lake: Lake) -> None:
    assert ask(lake, "SELECT name FROM jobs WHERE job_id = ?", "2") == [("welcome",)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT * FROM jobz", "table must be one of anomalies, attempts, .*, got 'jobz'"),
        ("SELECT * FROM jobz JOIN jobs USING (job_id)", "got 'jobz'"),
        ("SELECT nothing FROM jobs", 'column "nothing" not found'),
        ("SELEC 1", "syntax error"),
        ("SELECT 1; SELECT 2", "query must be one SELECT"),
        ("COPY jobs TO 'x.csv'", "query must be one SELECT"),
        ("DROP TABLE jobs", "query must be one SELECT"),
        ("SELECT name::INT FROM jobs", "Could not convert"),
        ("SELECT * FROM lake", "table must be one of"),
    ],
)
def test_a_wrong_query_is_one_line(lake: Lake, text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=f"(?i){message}") as caught:
        ask(lake, text)
    assert "\n" not in str(caught.value)


def test_a_file_that_has_expired_is_a_lake_error(lake: Lake) -> None:
    (lake.root / lake.head().of("jobs")[0].path).unlink()
    with pytest.raises(LakeError, match="ask again"):
        ask(lake, "SELECT * FROM jobs")


def test_an_empty_lake_has_no_tables(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="there are no tables"):
        LakeReader(tmp_path)


def test_without_duckdb_the_error_has_the_pip_line(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtra, match=r"pip install 'oxcart\[lake\]'"):
        reader_module.LakeReader(lake)


def test_reading_imports_no_pyspark_and_no_pyarrow(lake: Lake) -> None:
    code = (
        "import sys; from oxcart.history.reader import LakeReader\n"
        "assert list(LakeReader(sys.argv[1]).sql('SELECT count(*) FROM jobs')) == [(2,)]\n"
        "sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(lake.root)], timeout=60).returncode == 0
