"""Output of an attempt: seen whole or not at all, and never an older attempt's over a newer one's."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oxcart.errors import LeaseLost, ValidationError
from oxcart.spark.work.output import MARK, Output


def written(target: Path, text: str, start: int = 1, job: str = "j") -> Output:
    made = Output.make(target, job, start, start)
    made.clear()
    made.staging.mkdir()
    (made.staging / "part").write_text(text)
    return made


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_nothing_is_seen_before_it_is_published(tmp_path: Path) -> None:
    made = written(tmp_path / "a" / "day", "new")
    assert not (tmp_path / "a" / "day").exists()
    assert made.publish()
    assert names(tmp_path / "a") == ["day"]
    assert names(tmp_path / "a" / "day") == [MARK, "part"]


@pytest.mark.parametrize("at_once", [True, False])
def test_what_was_there_is_replaced_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    if not at_once:  # as on a file system that cannot exchange two names
        monkeypatch.setattr("oxcart.spark.work.output.ctypes.CDLL", lambda *_, **__: object())
    (tmp_path / "day").mkdir()
    (tmp_path / "day" / "old").touch()
    assert written(tmp_path / "day", "new").publish()
    assert names(tmp_path) == ["day"]
    assert (tmp_path / "day" / "part").read_text() == "new"
    assert not (tmp_path / "day" / "old").exists()


#: Publishes where names cannot be exchanged, and is killed after so many renames.
_KILLED = """
import os, sys
from oxcart.spark.work import output
target, left = sys.argv[1], int(sys.argv[2])
rename = os.rename
def renamed(one, other):
    global left
    if not left:
        os.kill(os.getpid(), 9)
    left -= 1
    rename(one, other)
output.ctypes.CDLL = lambda *_, **__: object()
made = output.Output.make(target, "j", 1, 1)
made.clear()
made.staging.mkdir()
(made.staging / "part").write_text("new")
os.rename = renamed
made.publish()
"""


@pytest.mark.parametrize(("renames", "there"), [(0, "old"), (1, None), (2, "new")])
def test_a_kill_between_two_renames_keeps_the_old_content(
    tmp_path: Path, renames: int, there: str | None
) -> None:
    target = tmp_path / "day"
    target.mkdir()
    (target / "part").write_text("old")
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(target), str(renames)], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert target.exists() is (there is not None)
    following = Output.make(target, "j", 2, 2)
    following.clear()
    assert names(tmp_path) == ["day"]
    assert (target / "part").read_text() == (there or "old")


def test_the_next_attempt_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    written(tmp_path / "day", "half", start=1)
    other = written(tmp_path / "day", "of another job", job="k")
    assert written(tmp_path / "day", "whole", start=2).publish()
    assert names(tmp_path) == [other.staging.name, "day"]
    assert (tmp_path / "day" / "part").read_text() == "whole"


def test_an_older_attempt_cannot_replace_a_newer_one(tmp_path: Path) -> None:
    old = written(tmp_path / "day", "old", start=1)
    new = Output.make(tmp_path / "day", "j", 2, 2)
    new.staging.mkdir()
    assert new.publish()
    with pytest.raises(LeaseLost):
        old.publish()
    assert names(tmp_path / "day") == [MARK]
    assert written(tmp_path / "day", "of tomorrow's job", start=1, job="k").publish()


def test_an_attempt_without_output_publishes_nothing(tmp_path: Path) -> None:
    assert not Output.make(tmp_path / "day", "j", 1, 1).publish()
    assert names(tmp_path) == []


def test_a_job_id_with_odd_characters_has_a_name_of_its_own(tmp_path: Path) -> None:
    places = {Output.make(tmp_path / "x", job, 1, 1).staging for job in ("a:b", "a/b", "a_b", "a" * 200)}
    assert len(places) == 4
    assert {place.parent for place in places} == {tmp_path}


@pytest.mark.parametrize("path", ["s3a://bucket/day", "hdfs://host/day", "/"])
def test_a_place_without_a_rename_in_one_step_is_refused(path: str) -> None:
    with pytest.raises(ValidationError, match="path"):
        Output.make(path, "j", 1, 1)


def test_outputs_of_a_job_lie_apart(tmp_path: Path) -> None:
    one = Output.make(tmp_path / "a", "j", 1, 1)
    for other in ("a", "a/b", "."):
        with pytest.raises(ValidationError, match="apart"):
            one.check_beside(Output.make(tmp_path / other, "j", 1, 1))
    one.check_beside(Output.make(tmp_path / "ab", "j", 1, 1))
