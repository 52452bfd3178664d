"""States once per worker for how long a queue keeps ended jobs."""

from __future__ import annotations

import logging

from oxcart.broker.port import ServedBroker
from oxcart.engine.looper import Looper

log = logging.getLogger("oxcart.worker")

#: Seconds after which a worker looks again at a queue that does not exist yet.
_AGAIN = 60.0
_DAY = 86_400


class KeepingNote(Looper):
    """Logs the retention of a queue."""

    name = "retention note"
    interval = 365.0 * _DAY
    delay = 5.0

    def __init__(self, broker: ServedBroker) -> None:
        super().__init__(broker.queue)
        self._broker = broker

    async def tick(self) -> float | None:
        """Logs it, if the queue exists."""
        if not any((await self._broker.counts()).values()):
            return _AGAIN
        completed, failed = await self._broker.kept_seconds()
        log.info(
            "queue %s keeps completed jobs %s and failed jobs %s, unless job or worker say otherwise",
            self.queue,
            _words(completed),
            _words(failed),
        )
        return None

    def retry_after(self, failures: int) -> float:
        """Returns the seconds to wait after a failure."""
        return _AGAIN


def _words(seconds: int | None) -> str:
    return "until they are removed" if seconds is None else f"for {seconds / _DAY:g} d"
