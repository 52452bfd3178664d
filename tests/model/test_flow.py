"""Trees: the order of their jobs, and what is refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from oxcart.model.errors import ValidationError
from oxcart.model.flow import DEEPEST, MOST_JOBS, DependencyCounts, OnFailure, Tree, arrange
from oxcart.model.options import JobOptions


def tree(name: str, *children: Tree, queue: str = "q", **options: Any) -> Tree:
    return Tree(queue, "bull", name, None, JobOptions.build(**options), OnFailure.FAIL, children)


def test_generation_by_generation() -> None:
    placed = arrange(
        [tree("a", tree("b", tree("d"), tree("e")), tree("c", tree("f"))), tree("x", tree("y"))], below=True
    )
    assert [one.tree.name for one in placed] == ["a", "x", "b", "c", "y", "d", "e", "f"]
    assert [one.parent for one in placed] == [-1, -1, 0, 0, 1, 2, 2, 3]


def test_the_bounds() -> None:
    wide = tree("top", *(tree("leaf") for _ in range(MOST_JOBS - 1)))
    assert len(arrange([wide], below=False)) == MOST_JOBS
    with pytest.raises(ValidationError, match=f"at most {MOST_JOBS} jobs, because it is added in one call"):
        arrange([tree("above", wide)], below=False)
    deep = tree("leaf")
    for _ in range(DEEPEST - 1):
        deep = tree("over", deep)
    assert len(arrange([deep], below=False)) == DEEPEST
    with pytest.raises(ValidationError, match=f"at most {DEEPEST} generations"):
        arrange([tree("over", deep)], below=False)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (tree("a", tree("b", job_id="x"), tree("c", job_id="x")), "different for every job of a flow"),
        (tree("a", tree("b", job_id="x"), job_id="x"), "different for every job of a flow"),
        (tree("a", tree("b", job_id="x:y:z")), "without ':' in a flow"),
        (tree("a", tree("b", deduplication="d")), "left to the job at the top"),
        (tree("a", tree("b"), deduplication={"id": "d", "replace": True}), "False for a flow"),
    ],
)
def test_refused(made: Tree, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        arrange([made], below=False)


def test_the_same_id_in_two_trees_that_are_added_together() -> None:
    ids: set[tuple[str, str, str]] = set()
    arrange([tree("a", tree("b", job_id="x"))], below=True, ids=ids)
    with pytest.raises(ValidationError, match="different for every job of a flow"):
        arrange([tree("c", job_id="x")], below=True, ids=ids)


def test_the_same_id_in_two_queues_is_two_jobs() -> None:
    assert len(arrange([tree("a", tree("b", job_id="x", queue="r"), job_id="x")], below=False)) == 2


def test_a_window_is_for_the_top_alone() -> None:
    alone = tree("a", tree("b"), deduplication="d")
    assert len(arrange([alone], below=False)) == 2
    with pytest.raises(ValidationError, match="left to the job at the top"):
        arrange([alone], below=True)


def test_policies() -> None:
    assert OnFailure.parse("ignore") is OnFailure.IGNORE
    assert OnFailure.parse(OnFailure.WAIT) is OnFailure.WAIT
    with pytest.raises(
        ValidationError, match="on_failure must be one of fail, continue, ignore, remove, wait"
    ):
        OnFailure.parse("explode")


def test_the_total_of_counts() -> None:
    assert DependencyCounts(1, 2, 3, 4).total == 10
