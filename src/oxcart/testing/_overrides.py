"""Replaces dependencies of handlers in a test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from oxcart.engine import injection


@contextlib.contextmanager
def override(dependency: Callable[..., Any], replacement: Callable[..., Any]) -> Iterator[None]:
    """Opens another function instead of a dependency, within the block and in every thread.

    Args:
        dependency: The function or class that `Depends` names; for ``Depends()`` the type of the parameter.
        replacement: A dependency that stands in for it, opened once per job: ``lambda: fake_pool``.

    Raises:
        ValidationError: The replacement has a parameter that nothing fills.
    """
    before = injection.overrides.get(dependency)
    injection.overrides[dependency] = injection.replacement(dependency, replacement)
    try:
        yield
    finally:
        if before is None:
            del injection.overrides[dependency]
        else:
            injection.overrides[dependency] = before
