"""The Bridge protocol: a namespace of jobs of many types, shared with clients of any language."""

from oxcart.broker.bridge.broker import BridgeBroker
from oxcart.broker.bridge.keys import BridgeKeys

__all__ = ["BridgeBroker", "BridgeKeys"]
