"""The rules of graphs: what is refused, the order of jobs, and the effect of an end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxcart.model.errors import ValidationError
from oxcart.model.graph import BROADEST, DEEPEST, Edge, Existing, Kind, Node, arrange, effect, inherited
from oxcart.model.options import JobOptions
from oxcart.model.state import TERMINAL, State

KNOWN = Existing("bull", "q", "known")


def node(*of: int | Existing, **options: Any) -> Node:
    return Node("q", "bull", "n", None, JobOptions.build(**options), tuple(Edge(one) for one in of))


class TestArranging:
    @given(st.data())
    def test_dependencies_come_first(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, 30))
        names = data.draw(st.permutations(range(count)))
        nodes: list[Node] = [node()] * count
        for place, name in enumerate(names):
            behind = data.draw(st.lists(st.sampled_from(names[:place]), unique=True)) if place else []
            nodes[name] = node(*behind)
        order = arrange(nodes)
        assert sorted(order) == list(range(count))
        turn = {number: at for at, number in enumerate(order)}
        assert all(turn[int(str(edge.of))] < turn[n] for n in range(count) for edge in nodes[n].edges)

    @given(st.integers(1, 20), st.integers(0, 10))
    def test_a_cycle_of_any_length_is_refused(self, length: int, more: int) -> None:
        nodes = [node((number + 1) % length) for number in range(length)]
        nodes += [node(number - 1) for number in range(length, length + more)]
        with pytest.raises(ValidationError, match="must have no cycle"):
            arrange(nodes)

    def test_as_deep_as_allowed(self) -> None:
        deep = [node(), *(node(number - 1) for number in range(1, DEEPEST))]
        assert arrange(deep) == list(range(DEEPEST))
        with pytest.raises(ValidationError, match="at most 100 jobs that wait in a row, got 101"):
            arrange([*deep, node(DEEPEST - 1)])
        with pytest.raises(ValidationError, match="at most 100 jobs that wait in a row, got 101"):
            arrange([node(KNOWN), *deep[1:]])

    def test_as_many_dependencies_as_allowed(self) -> None:
        full = [node() for _ in range(500)] + [node(*range(500)) for _ in range(40)]
        assert len(arrange(full)) == 540  # 20 000 dependencies

    def test_as_broad_as_allowed(self) -> None:
        broad = [Existing("bull", "q", f"j{n}") for n in range(BROADEST)]
        assert arrange([node(*broad)]) == [0]
        with pytest.raises(ValidationError, match="at most 1000 jobs to wait for, got 1001"):
            arrange([node(*broad, KNOWN)])

    @pytest.mark.parametrize(
        ("nodes", "words"),
        [
            ([node(1)], "a job of this graph, or an existing job"),
            ([node(), node(0, 0)], "a job once"),
            ([node(job_id="a"), node(job_id="a")], "different for every job"),
            ([node(job_id="a:b:c")], "without ':'"),
            ([node(deduplication="d")], "without dependencies"),
            ([node(idempotency_key="k"), node(idempotency_key="k")], "used once in a graph"),
            ([node()] * 1001, "at most 1000 jobs"),
            (
                [node() for _ in range(500)] + [node(*range(500)) for _ in range(50)],
                "at most 20000 dependencies",
            ),
        ],
    )
    def test_refusals(self, nodes: list[Node], words: str) -> None:
        with pytest.raises(ValidationError, match=words):
            arrange(nodes)


class TestPropagation:
    @pytest.mark.parametrize(
        ("ended", "state"),
        [
            (State.COMPLETED, None),
            (State.FAILED, State.FAILED),
            (State.DEAD_LETTER, State.DEAD_LETTER),
            (State.CANCELLED, State.CANCELLED),
        ],
    )
    def test_the_table(self, ended: State, state: State | None) -> None:
        assert effect(Kind.AFTER, ended) == state
        assert effect(Kind.AFTER_ANY, ended) is None

    @pytest.mark.parametrize("state", sorted(set(State) - TERMINAL))
    def test_only_an_end_has_an_effect(self, state: State) -> None:
        with pytest.raises(ValidationError):
            effect(Kind.AFTER, state)


def test_the_highest_priority_is_inherited() -> None:
    assert inherited(4, [2, 3]) == 2
    assert inherited(1, [2, 3]) == 1
    assert inherited(3, []) == 3
