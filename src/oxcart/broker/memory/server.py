"""Queues in memory, shared by every producer and worker of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from oxcart.broker.capabilities import MEMORY
from oxcart.broker.clock import ServerClock
from oxcart.broker.keyring import KeyRing
from oxcart.broker.memory.broker import MemoryBroker
from oxcart.broker.memory.leases import Leases
from oxcart.broker.memory.store import Store
from oxcart.broker.sealing import Sealer


class MemoryServer:
    """Keeps queues in memory: ``Queue("emails", broker=MemoryServer())``.

    Queues of one server object share their jobs if prefix and name are equal, as on a real server. Other
    processes do not see them, and the end of the process loses them.

    Args:
        clock: The time in ms. A test passes its own and moves it, instead of waiting for delays and leases.
    """

    capabilities = MEMORY

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self.clock = ServerClock(clock)
        self._queues: dict[tuple[str, str], tuple[Store, Leases]] = {}
        self._lock = threading.Lock()

    def open(
        self, queue: str, *, prefix: str = "bull", key_ring: KeyRing | None = None, **_: Any
    ) -> MemoryBroker:
        """Opens a queue for one client.

        Args:
            queue: The queue's name.
            prefix: Separates queues of equal names.
            key_ring: Seals and opens values.
            **_: Arguments that only brokers of real servers use.
        """
        return MemoryBroker(queue, *self._parts_of(queue, prefix, key_ring))

    def keys(self) -> list[str]:
        """Returns what the server stores: prefix, queue and id of every job."""
        with self._lock:
            return [
                f"{prefix}:{queue}:{job_id}"
                for (prefix, queue), (store, _) in self._queues.items()
                for job_id in store.records
            ]

    def _parts_of(
        self, queue: str, prefix: str, key_ring: KeyRing | None
    ) -> tuple[Store, Leases, ServerClock, Sealer | None]:
        with self._lock:
            if (prefix, queue) not in self._queues:
                store = Store(queue)
                self._queues[prefix, queue] = store, Leases(store)
            sealer = Sealer.of(key_ring, "memory", prefix, queue)
            return (*self._queues[prefix, queue], self.clock, sealer)
