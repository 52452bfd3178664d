"""The server of a run, and a replica behind the same proxies that can take its place."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from tests.servers import ValkeyServer, wait_until


class Pair:
    """A master, and optionally a replica.

    Args:
        master: The master, which need not run yet.
        options: The options of the replica; None for no replica.

    Attributes:
        master: The present master.
        replica: The present replica, or None.
    """

    def __init__(self, master: ValkeyServer, options: dict[str, Any] | None) -> None:
        self.master = master
        self.replica = None if options is None else ValkeyServer(start=False, **options)

    def __enter__(self) -> Self:
        self.master.start()
        if self.replica is not None:
            self.rejoin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self.servers:
            one.stop()

    @property
    def servers(self) -> list[ValkeyServer]:
        """The master, and the replica if there is one."""
        return [self.master, *([self.replica] if self.replica is not None else [])]

    def start(self) -> None:
        """Starts what has ended."""
        for one in self.servers:
            one.start()

    def fail_over(self) -> None:
        """Kills the master and lets the replica take its place."""
        old, new = self.master, self.replica
        assert new is not None, "the run has no replica"
        old.kill()
        with new.client() as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
        new.options.pop("replicaof", None)
        self.master, self.replica = new, old

    def rejoin(self) -> None:
        """Starts the replica, which is the old master after a failover, and waits until it follows."""
        assert self.replica is not None
        self.replica.options["replicaof"] = f"127.0.0.1 {self.master.port}"
        self.replica.start()
        with self.replica.client() as client:
            wait_until(
                lambda: client.info("replication").get("master_link_status") == "up", "the replica follows"
            )
