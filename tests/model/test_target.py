"""Targets, abilities and the names of lanes."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxcart.model.errors import ValidationError
from oxcart.model.names import HIDDEN, check_queue_name
from oxcart.model.target import MAX_WORD, MAX_WORDS, Abilities, Target, base_of, lane_name, parse_lane

WORDS = st.text(min_size=1, max_size=12).filter(
    lambda text: not any("\ud800" <= char <= "\udfff" for char in text)
)
SPECIAL = st.text("@;,=%~:{}/ +ab\x00ü*", min_size=1, max_size=6)
SEVERAL = st.lists(WORDS | SPECIAL, max_size=4)
TARGETS = st.builds(
    Target,
    server=st.none() | WORDS | SPECIAL,
    stack=SEVERAL,
    capabilities=SEVERAL,
    region=SEVERAL,
    mode=st.sampled_from(["any", "all"]),
)
BASES = (WORDS | SPECIAL | st.sampled_from(["video", "a@b", "a@all", "a@all;", "x;c=gpu", "{v}"])).filter(
    lambda name: ":" not in name and not name.endswith(HIDDEN) and parse_lane(name) is None
)


def test_values_are_sorted_and_unique() -> None:
    target = Target(stack="node", capabilities=["gpu", "cuda", "gpu"], region=iter(("us", "eu")))
    assert target.stack == ("node",)
    assert target.capabilities == ("cuda", "gpu")
    assert target.region == ("eu", "us")
    assert target == Target(stack=["node"], capabilities={"cuda", "gpu"}, region=("eu", "us"))
    assert hash(target) == hash(Target(stack=["node"], capabilities=["cuda", "gpu"], region=["us", "eu"]))


def test_a_target_that_asks_for_nothing() -> None:
    assert not Target()
    assert Target(mode="any") == Target()
    assert Target(mode="any").matches(Abilities())
    assert lane_name("video", Target()) == "video"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "some"}, "target mode must be 'any' or 'all', got 'some'"),
        ({"server": ""}, "target server must be text of 1 to 128 characters, got ''"),
        ({"server": 5}, "target server must be text of 1 to 128 characters, got 5"),
        ({"stack": 5}, "target stack must be a string or several, got 5"),
        ({"stack": b"node"}, "target stack must be a string or several, got b'node'"),
        ({"stack": {"a": 1}}, "target stack must be a string or several"),
        ({"stack": None}, "target stack must be a string or several, got None"),
        ({"capabilities": ["gpu", ""]}, "target capabilities must be text of 1 to 128 characters"),
        ({"capabilities": ["x" * (MAX_WORD + 1)]}, "target capabilities must be text of 1 to 128"),
        ({"capabilities": [str(i) for i in range(MAX_WORDS + 1)]}, "at most 32 words, got 33"),
        ({"region": "\ud800"}, "target region must be text that UTF-8 can hold"),
    ],
)
def test_bad_targets(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Target(**given)
    assert message in str(caught.value)


def test_bad_abilities() -> None:
    with pytest.raises(ValidationError, match="abilities region must be text of 1 to 128"):
        Abilities(region=[""])
    with pytest.raises(ValidationError, match="abilities server"):
        Abilities(server="")


WORKER = Abilities("w-1", stack="python", capabilities=["gpu", "email"], region="us-east")


@pytest.mark.parametrize(
    ("target", "matches"),
    [
        (Target(server="w-1"), True),
        (Target(server="w-2"), False),
        (Target(server="w-1", region="mars"), True),  # the server alone decides
        (Target(server="w-2", region="us-east", mode="any"), False),
        (Target(stack=["node", "python"]), True),
        (Target(stack="node"), False),
        (Target(capabilities="gpu"), True),
        (Target(capabilities=["gpu", "email"]), True),
        (Target(capabilities=["gpu", "sms"]), False),
        (Target(capabilities=["gpu", "sms"], mode="any"), True),
        (Target(capabilities="sms", mode="any"), False),
        (Target(capabilities="gpu", region="eu"), False),
        (Target(capabilities="gpu", region="eu", mode="any"), True),
        (Target(capabilities="sms", region="us-east", mode="any"), True),
        (Target(capabilities="sms", region="eu", mode="any"), False),
        (Target(stack="python", capabilities="gpu", region=["eu", "us-east"]), True),
        (Target(capabilities="GPU"), False),
    ],
)
def test_matching(target: Target, matches: bool) -> None:
    assert target.matches(WORKER) is matches


def test_matching_follows_the_text() -> None:
    words: list[tuple[str, ...]] = [(), ("a",), ("a", "b")]
    for stack, caps, region, has_s, has_c, has_r in product(words, repeat=6):
        worker = Abilities("w", stack=has_s, capabilities=has_c, region=has_r)
        named = [
            (bool(set(stack) & set(has_s)), stack),
            (set(caps) <= set(has_c), caps),
            (bool(set(region) & set(has_r)), region),
        ]
        every = all(met for met, asked in named if asked)
        assert Target(None, stack, caps, region).matches(worker) is every
        named[1] = (bool(set(caps) & set(has_c)), caps)
        one = [met for met, asked in named if asked]
        assert Target(None, stack, caps, region, "any").matches(worker) is (any(one) or not one)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (Target(capabilities="gpu", region="us-east"), "video@all;c=gpu;r=us-east"),
        (Target(capabilities=["gpu", "cuda"], mode="any"), "video@any;c=cuda,gpu"),
        (Target(server="worker-1"), "video@all;id=worker-1"),
        (Target(stack="node", region="a,b"), "video@all;s=node;r=a%2Cb"),
        (Target(region="~gates"), "video@all;r=%7Egates"),
        (Target(region="{x}:@;=% ü"), "video@all;r=%7Bx%7D%3A%40%3B%3D%25%20%C3%BC"),
    ],
)
def test_names_of_lanes(target: Target, name: str) -> None:
    assert lane_name("video", target) == name
    assert parse_lane(name) == ("video", target)
    assert base_of(name) == "video"


@pytest.mark.parametrize(
    "name",
    [
        "video",
        "video@",
        "@all;c=gpu",
        "ada@example.com",
        "video@all",
        "video@all;",
        "video@some;c=gpu",
        "video@c=gpu",
        "video@all;c=",
        "video@all;c=gpu,",
        "video@all;c=gpu;c=cuda",
        "video@all;x=gpu",
        "video@all;capabilities=gpu",
        "video@all;id=a,b",
        "video@all;c=g%ZZ",
        "video@all;c=g%FF",
        "video@all;c=gpu~gates",
        "video@all;c=gpu@all;c=cpu",
        f"video@all;c={'x' * (MAX_WORD + 1)}",
    ],
)
def test_names_of_other_queues(name: str) -> None:
    assert parse_lane(name) is None
    assert base_of(name) == name


def test_a_peer_need_not_sort() -> None:
    assert parse_lane("video@all;r=us;c=gpu,cuda,gpu") == (
        "video",
        Target(capabilities=["cuda", "gpu"], region="us"),
    )
    assert parse_lane("video@all;c=%7b") == ("video", Target(capabilities="{"))


def test_no_lane_of_a_lane() -> None:
    with pytest.raises(ValidationError, match="target must be for a queue that is not itself a lane"):
        lane_name("video@all;c=gpu", Target(region="eu"))


@given(BASES, TARGETS)
def test_a_name_can_be_read_back(base: str, target: Target) -> None:
    name = lane_name(base, target)
    if target:
        assert parse_lane(name) == (base, target)
        check_queue_name(name)
        assert "{" not in name[len(base) :]
        assert "}" not in name[len(base) :]
        assert name[len(base) :].isascii()
    else:
        assert name == base


@given(st.tuples(BASES, TARGETS), st.tuples(BASES, TARGETS))
def test_two_targets_never_share_a_name(one: tuple[str, Target], other: tuple[str, Target]) -> None:
    assert (lane_name(*one) == lane_name(*other)) is (one == other)


@given(st.text(max_size=30) | st.from_regex(r"v@(all|any)(;[a-z]{1,2}=[a-z%0-9,]{0,6}){0,3}", fullmatch=True))
def test_every_parsed_lane_has_its_target(name: str) -> None:
    read = parse_lane(name)
    if read is not None:
        base, target = read
        assert target
        assert name.startswith(f"{base}@")
        assert parse_lane(base) is None
        assert parse_lane(lane_name(base, target)) == read


@given(TARGETS)
def test_text_and_mappings_are_read(target: Target) -> None:
    assert Target.parse(str(target)) == target
    assert Target.read(target) is target
    parts = {
        "server": target.server,
        "stack": target.stack,
        "capabilities": list(target.capabilities),
        "region": target.region,
        "mode": target.mode,
    }
    assert Target.read(parts) == target


def test_read_refuses_invalid_targets() -> None:
    with pytest.raises(ValidationError, match="target must be a Target, a mapping"):
        Target.read(5)
    with pytest.raises(ValidationError, match="target gpu must be one of capabilities, mode"):
        Target.read({"gpu": 1})
    with pytest.raises(ValidationError, match="target must be like 'all;c=gpu,cuda;r=us-east'"):
        Target.read("gpu")


def test_abilities_show_their_values() -> None:
    assert repr(WORKER) == (
        "Abilities(server='w-1', stack=('python',), capabilities=('email', 'gpu'), region=('us-east',))"
    )
    assert Abilities().stack == ("python",)
    same = Abilities("w-1", stack=["python"], capabilities={"email", "gpu"}, region=["us-east"])
    assert same == WORKER
    assert hash(same) == hash(WORKER)


def test_abilities_are_read_from_a_mapping_and_nothing_else() -> None:
    made = Abilities(capabilities="gpu")
    assert Abilities.read({"capabilities": "gpu"}) == Abilities.read(made) == made
    for bad in ("gpu", ["gpu"], None, 5):
        with pytest.raises(ValidationError, match="a mapping of their attributes"):
            Abilities.read(bad)
