"""The demo's statistics."""

from __future__ import annotations

from oxcart.cli.demo.story import Story, percentile
from oxcart.model.event import Event


def story_of(*events: tuple[str, str, int]) -> Story:
    story = Story()
    for name, job, at in events:
        event = Event(
            id=f"{at}-0", name=name, queue="q", timestamp=at, job_id=job, return_value={"worker": "w"}
        )
        story.record(event)
    return story


def test_a_retried_job_counts_once_with_two_runs() -> None:
    story = story_of(
        ("added", "1", 1000),
        ("waiting", "1", 1000),
        ("active", "1", 1010),
        ("delayed", "1", 1030),
        ("waiting", "1", 1530),
        ("active", "1", 1535),
        ("completed", "1", 1540),
    )
    assert (story.completed, story.failed, story.retries) == (1, 0, 1)
    assert story.waits == [10, 5]
    assert story.runs == [20, 5]
    assert story.by_worker == {"w": 1}
    assert story.rate(2000) == 1


def test_percentiles_use_the_nearest_rank() -> None:
    assert percentile([], 50) == 0
    assert percentile([7], 99) == 7
    assert percentile(list(range(1, 101)), 50) == 50
    assert percentile(list(range(1, 101)), 99) == 99
