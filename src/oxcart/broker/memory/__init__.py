"""A broker in memory, for tests and for trying things out: one process, no server."""

from oxcart.broker.memory.broker import MemoryBroker
from oxcart.broker.memory.server import MemoryServer

__all__ = ["MemoryBroker", "MemoryServer"]
