"""The table of what each protocol can express: complete, described, and asked before anything is written."""

from __future__ import annotations

import pickle

import pytest

from oxcart.broker.capabilities import BRIDGE, BULLMQ, FEATURES, WORDS, Capabilities
from oxcart.model.errors import NotSupported


def test_every_feature_is_described() -> None:
    assert set(FEATURES) == set(WORDS)


def test_every_feature_has_a_protocol() -> None:
    for feature in FEATURES:
        assert BULLMQ.can(feature) or BRIDGE.can(feature), feature


@pytest.mark.parametrize("table", [BULLMQ, BRIDGE])
def test_what_is_missing_is_refused_in_words(table: Capabilities) -> None:
    for feature in FEATURES:
        if table.can(feature):
            table.require(feature)
            continue
        with pytest.raises(NotSupported) as refused:
            table.require(feature)
        assert WORDS[feature] in str(refused.value)
        assert table.protocol in str(refused.value)
        again = pickle.loads(pickle.dumps(refused.value))
        assert (again.protocol, again.feature) == (table.protocol, feature)
