"""The base of the parts of a broker of a Bridge job type."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oxcart.broker.bridge.broker import BridgeBroker


class TypePart:
    """A part of one job type's broker."""

    def __init__(self, broker: BridgeBroker) -> None:
        self._broker = broker
