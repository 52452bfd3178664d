"""The generated classes have every member of their originals, with the same parameters and docstrings."""

from __future__ import annotations

import gc
import importlib
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tools.sync.faces import FACES, Face
from tools.sync.source import twin_module

import oxcart
from oxcart import sync
from oxcart.model.errors import ValidationError

RENAMED = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}


def pair(face: Face) -> tuple[type, type]:
    original = getattr(importlib.import_module(face.module), face.name)
    twin = getattr(importlib.import_module(twin_module(face.module)), face.name)
    return original, twin


@pytest.fixture
def queue(url: str) -> Iterator[sync.Queue]:
    with sync.Queue("q", url=url) as queue:
        yield queue


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.name)
class TestMembers:
    def test_twin_has_every_member(self, face: Face) -> None:
        original, twin = pair(face)
        public = {name for name in dir(original) if not name.startswith("_")} - set(face.without)
        assert public - set(dir(twin)) == set()
        special = {ours for theirs, ours in RENAMED.items() if hasattr(original, theirs)}
        assert special - set(dir(twin)) == set()

    def test_parameters_are_the_same(self, face: Face) -> None:
        original, twin = pair(face)
        compared = ["__init__"]
        compared += [
            name
            for name, value in inspect.getmembers(original, inspect.isfunction)
            if not name.startswith("_") and name not in face.without
        ]
        for name in compared:
            theirs, ours = inspect.signature(getattr(original, name)), inspect.signature(getattr(twin, name))
            assert list(ours.parameters.values()) == list(theirs.parameters.values()), name

    def test_nothing_is_awaited(self, face: Face) -> None:
        _, twin = pair(face)
        for name, value in inspect.getmembers(twin, inspect.isfunction):
            assert not inspect.iscoroutinefunction(value), name
            assert not inspect.isasyncgenfunction(value), name

    def test_docstrings_come_along(self, face: Face) -> None:
        original, twin = pair(face)
        assert (original.__doc__ or "").split("\n")[0] == (twin.__doc__ or "").split("\n")[0]
        for name, value in inspect.getmembers(original, inspect.isfunction):
            if not name.startswith("_") and name not in face.without:
                text = (getattr(twin, name).__doc__ or "").replace(" iterator", " async iterator")
                assert text.split() == (value.__doc__ or "").replace("await ", "").split(), name


class TestValues:
    def test_a_queue_has_one_twin(self, queue: sync.Queue) -> None:
        job = queue.add("n")
        assert job.queue is queue
        assert sync.Graph(queue).job("n").queue is queue
        assert repr(job) == f"sync.JobHandle(q/{job.id})"

    def test_a_handle_keeps_its_queue(self, url: str) -> None:
        job = sync.Queue("kept", url=url).add("n")
        kept = weakref.ref(job.queue)
        gc.collect()
        assert kept() is not None
        assert job.state() == "waiting"
        job.queue.close()

    def test_a_job_of_a_graph_waits_for_handles(self, queue: sync.Queue) -> None:
        first = queue.add("first")
        graph = sync.Graph(queue)
        second = graph.job("second").after(first)
        graph.job("third").after(second)
        handles = graph.add()
        assert [job.name for job in graph.jobs] == ["second", "third"]
        assert [handle.name for handle in handles] == ["second", "third"]
        assert [handle.queue for handle in handles] == [queue, queue]

    @pytest.mark.parametrize("kind", [sync.Flow, sync.Graph])
    def test_an_asynchronous_queue_is_refused(self, url: str, kind: Callable[..., object]) -> None:
        with pytest.raises(ValidationError, match=r"queue must be one of oxcart\.sync"):
            kind(oxcart.Queue("q", url=url), *(["n"] if kind is sync.Flow else []))

    def test_text_is_no_list_of_jobs(self, queue: sync.Queue) -> None:
        with pytest.raises(ValidationError, match="after must be a list of jobs"):
            queue.add("n", after="job-1")

    def test_iterables_are_read_by_the_calling_thread(self, queue: sync.Queue) -> None:
        seen: list[threading.Thread] = []

        def dependencies() -> Iterator[Any]:
            seen.append(threading.current_thread())
            yield queue.add("first")

        queue.add("second", after=dependencies())
        assert seen == [threading.current_thread()]

    def test_events_stop_where_the_loop_does(self, queue: sync.Queue) -> None:
        with queue.events(names=["added"]) as events:
            ids = [queue.add("n").id for _ in range(3)]
            read = []
            for event in events:
                read.append(event.job_id)
                if len(read) == 2:
                    break
            read.append(next(iter(events)).job_id)
        assert read == ids
