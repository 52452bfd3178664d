"""The Spark process of a demo on a machine that has too much to do."""

from __future__ import annotations

import json

import pytest

from oxcart.cli.demo.spark import patiently
from oxcart.spark.errors import WorkerLate

LATE = RuntimeError("org.apache.spark.SparkException: Python worker failed to connect back.")


class Step:
    """A step that raises these errors, one a call, and then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_a_step_whose_python_process_was_late_is_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert patiently(Step(LATE), pause=0) == "done"
    assert json.loads(capsys.readouterr().out) == {"say": "this machine is busy: trying again in 0 s"}


def test_a_step_that_was_late_twice_says_what_to_do() -> None:
    with pytest.raises(WorkerLate, match="run it again: nothing is lost"):
        patiently(Step(LATE, LATE), pause=0)


def test_another_error_is_not_tried_again() -> None:
    step = Step(ValueError("no"), ValueError("again"))
    with pytest.raises(ValueError, match="no"):
        patiently(step, pause=0)
    assert len(step.errors) == 1
