from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from oxcart.model.event import Event
from oxcart.model.job import Job
from oxcart.model.options import JobOptions
from oxcart.model.retention import KEEP
from oxcart.model.schemas import SCHEMAS, main, render, schema

COMMITTED = Path(__file__).parents[2] / "docs" / "schemas"

SAMPLES: list[msgspec.Struct] = [
    JobOptions(),
    JobOptions.build(
        attempts=5, backoff="linear", timeout=None, remove_on_complete=7, remove_on_fail={"age": 5}
    ),
    JobOptions(attempts=0, remove_on_fail=KEEP),
    Job(id="1", name="n", queue="q"),
    Job(id="1", name="n", queue="q", data=[1], parent={"id": "2"}, stacktrace=["a"], step_records={"a": "b"}),
    Event(id="5-0", name="completed", queue="q", timestamp=5, job_id="1", return_value=[1]),
    Event(id="5-0", name="drained", queue="q", timestamp=5),
]


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_committed_file_is_the_generated_one(name: str) -> None:
    hint = "run: python -m oxcart.model.schemas --write docs/schemas"
    assert (COMMITTED / name).read_text(encoding="utf-8") == render(SCHEMAS[name]), hint


def test_nothing_else_is_committed() -> None:
    assert {path.name for path in COMMITTED.glob("*.json")} == set(SCHEMAS)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_samples_are_valid(sample: msgspec.Struct) -> None:
    document = schema(type(sample))
    jsonschema.Draft202012Validator.check_schema(document)
    jsonschema.validate(msgspec.json.decode(msgspec.json.encode(sample)), document)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (JobOptions, {"attempts": "3"}),
        (JobOptions, {"backoff": {"type": "quadratic"}}),
        (Job, {"id": "1"}),
        (Event, {"id": "1", "name": "x", "queue": "q", "timestamp": "now"}),
    ],
)
def test_invalid_values_fail_validation(kind: type[msgspec.Struct], value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, schema(kind))


@pytest.mark.parametrize("kind", SCHEMAS.values(), ids=lambda kind: kind.__name__)
def test_every_property_is_described(kind: type[msgspec.Struct]) -> None:
    for part in schema(kind)["$defs"].values():
        assert part["description"]
        for name, words in part.get("properties", {}).items():
            assert words.get("description"), name


def test_command_writes_every_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--write", str(tmp_path / "new")])
    assert len(capsys.readouterr().out.splitlines()) == len(SCHEMAS)
    assert {path.name for path in (tmp_path / "new").iterdir()} == set(SCHEMAS)
