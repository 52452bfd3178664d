"""The version of a worker's program: an argument, or the environment."""

from __future__ import annotations

from typing import Any

import pytest

from oxcart.engine.source import read_version
from oxcart.model.errors import ValidationError


def test_the_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OXCART_APP_VERSION", raising=False)
    assert read_version(None) == ""
    monkeypatch.setenv("OXCART_APP_VERSION", "7f3a")
    assert (read_version(None), read_version("v2"), read_version("")) == ("7f3a", "v2", "")


@pytest.mark.parametrize("given", ["x" * 101, 7])
def test_a_long_version_or_no_text_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match="version must be a text of at most 100 characters"):
        read_version(given)
