"""Options of the source and the sink: a wrong one is a typed error before anything runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StringType, StructField, StructType

from oxcart.model.errors import ValidationError
from oxcart.spark.options import EVENT_STREAM, JOBS, OPTIONS, WRITE
from oxcart.spark.source import OxcartSource

ROWS = StructType([StructField("k", StringType())])
DOCS = Path(__file__).parents[2] / "docs" / "pipeline.md"

#: Options that make a use complete.
BASE = {
    JOBS: {"queue": "q"},
    EVENT_STREAM: {"queue": "q", "content": "events"},
    WRITE: {"queue": "q", "key": "k", "name": "n"},
}


def plan(use: str, **options: str) -> object:
    """Plans a use, as Spark does before it starts a task."""
    source = OxcartSource({**BASE[use], **options})
    if use == WRITE:
        return source.writer(ROWS, overwrite=False)
    source.schema()
    return source.reader(ROWS) if use == JOBS else source.streamReader(ROWS)


@pytest.mark.parametrize("use", BASE)
def test_the_options_of_a_use_are_accepted(use: str) -> None:
    plan(use, url="redis://127.0.0.1:6379", prefix="bull")


@pytest.mark.parametrize(
    "text",
    [
        "soon",
        "{",
        "[]",
        "null",
        "1",
        '{"q": 5}',
        '{"q": {"id": "x"}}',
        '{"q": {"id": "1-0", "n": "a"}}',
        '{"q": {"id": "1-0", "n": -1}}',
        '{"": {"id": "1-0", "n": 1}}',
    ],
)
def test_wrong_starting_offsets_are_refused(text: str) -> None:
    with pytest.raises(
        ValidationError, match=r"^startingOffsets (must be earliest, latest, or JSON|has a mal)"
    ):
        plan(EVENT_STREAM, startingOffsets=text)


@pytest.mark.parametrize("text", ["earliest", "latest", "{}", '{"q": {"id": "1700000000000-0", "n": 12}}'])
def test_right_starting_offsets_are_accepted(text: str) -> None:
    plan(EVENT_STREAM, startingOffsets=text)


@pytest.mark.parametrize(
    ("use", "name", "value", "message"),
    [
        (EVENT_STREAM, "maxRowsPerBatch", "0", "a whole number from 1 to 1000000000, got '0'"),
        (EVENT_STREAM, "maxRowsPerBatch", "²", "a whole number from 1"),
        (EVENT_STREAM, "maxRowsPerBatch", "9" * 30, "a whole number from 1"),
        (EVENT_STREAM, "attempts", "yes", "attempts must be true or false, got 'yes'"),
        (EVENT_STREAM, "samples", "1", "samples must be true or false"),
        (EVENT_STREAM, "spool", __file__, "spool must be a folder"),
        (EVENT_STREAM, "lake", __file__, "lake must be a folder"),
        (EVENT_STREAM, "content", "x", "content must be jobs or events"),
        (JOBS, "content", "events", "use spark.readStream"),
        (EVENT_STREAM, "content", "jobs", "add .option"),
        (
            JOBS,
            "startingOffsets",
            "earliest",
            "left out of a table of jobs: it belongs to a stream of events",
        ),
        (JOBS, "quarantine", "x", "it belongs to a write"),
        (JOBS, "startingOffset", "earliest", "option must be one of .*, got 'startingOffset'"),
        (JOBS, "pattern", "a:*", "pattern must be without a colon"),
        (JOBS, "queue", "a:b", "must be"),
        (JOBS, "url", "nonsense", "url must"),
        (JOBS, "url", "redis://:secret@host", "without a password"),
        (JOBS, "urlEnv", "A B", "urlEnv must be the name of an environment variable"),
        (JOBS, "passwordEnv", "a-b", "passwordEnv must be the name"),
        (JOBS, "folder", __file__, "folder must be a folder"),
        (JOBS, "protocol", "kafka", "protocol must be 'bullmq' or 'bridge'"),
        (JOBS, "namespace", "x", "namespace must be left out"),
        (WRITE, "keysEnv", "OXCART_UNSET", "OXCART_UNSET, which is not set"),
        (WRITE, "quarantine", __file__, "quarantine must be a folder"),
        (WRITE, "key", "zz", "key must be a column of k"),
        (WRITE, "pattern", "*", "left out of a write"),
    ],
)
def test_a_wrong_option_is_refused_by_name(use: str, name: str, value: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        plan(use, **{name: value})


def test_the_documentation_lists_every_option() -> None:
    """The table of docs/pipeline.md is the list, word for word and in its order."""
    words = {JOBS: "jobs", EVENT_STREAM: "events", WRITE: "write"}
    rows = [
        f"| `{option.name}` | {', '.join(words[use] for use in option.uses)} | {option.default or 'none'} "
        f"| {option.meaning} |"
        for option in OPTIONS
    ]
    listed = re.findall(r"^\| `\w+` \| (?:jobs|events|write).*\|$", DOCS.read_text(), re.M)
    assert listed == rows
