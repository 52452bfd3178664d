"""What each protocol can express: every feature is described, and every refusal names an alternative."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

import oxcart
from oxcart import Queue
from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.capabilities import BRIDGE, BULLMQ, FEATURES, MEMORY, OPTIONS, PARTITIONED, Capabilities
from oxcart.broker.connection import Server
from oxcart.broker.port import Broker
from oxcart.model.errors import NotSupported
from oxcart.model.options import JobOptions

PROTOCOLS = [BULLMQ, BRIDGE, MEMORY, PARTITIONED]
#: Features of peers that no user requests and that have no alternative.
NOTHING_ELSE = {"wakes"}


def test_every_feature_has_a_protocol() -> None:
    for feature in FEATURES:
        assert any(table.can(feature) for table in PROTOCOLS), feature


def test_options_name_features_and_options_of_jobs() -> None:
    assert set(OPTIONS.values()) <= set(FEATURES)
    assert set(OPTIONS) <= set(JobOptions.__struct_fields__)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("table", PROTOCOLS, ids=lambda table: table.protocol)
def test_a_refusal_names_the_alternative_or_that_there_is_none(table: Capabilities, feature: str) -> None:
    if table.can(feature):
        table.require(feature)
        return
    with pytest.raises(NotSupported) as refused:
        table.require(feature)
    error = refused.value
    assert FEATURES[feature].words in str(error)
    assert table.protocol in str(error)
    assert bool(error.alternative) is (feature not in NOTHING_ELSE)
    assert str(error).endswith(error.alternative or "there is no alternative")
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("table", [BULLMQ, BRIDGE], ids=lambda table: table.protocol)
def test_a_refused_option_names_the_alternative(table: Capabilities, option: str) -> None:
    feature = OPTIONS[option]
    if not table.can(feature):
        with pytest.raises(NotSupported, match=r": .{6,}$"):
            table.require(feature)


@pytest.mark.parametrize("kind", [BullMQBroker, BridgeBroker])
def test_a_broker_has_the_parts_of_its_features_and_no_others(kind: type[Broker]) -> None:
    broker = kind(Server("redis://localhost:1"), "q")  # type: ignore[call-arg]
    for feature, (_, _, part) in FEATURES.items():
        if part:
            assert (getattr(broker, part) is not None) is broker.capabilities.can(feature), feature


def test_no_module_asks_for_the_type_of_a_broker() -> None:
    asks = re.compile(r"isinstance\([^)\n]*Broker\b|is_native")
    source = Path(oxcart.__file__).parent
    assert [str(path) for path in source.rglob("*.py") if asks.search(path.read_text())] == []


def test_partitions_of_another_protocol_are_refused_with_the_alternative() -> None:
    with pytest.raises(NotSupported, match="use several types, or a queue of the BullMQ protocol"):
        Queue("q", protocol="bridge", partitions=4)
