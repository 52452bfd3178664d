"""Requests to cancel running jobs, as their worker receives them.

A client that cancels a running job leaves a note in the inbox of its worker, and in the job. The
worker blocks on its inbox. A note that was popped and lost with its connection is still in the job.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from oxcart.broker.caller import script_error
from oxcart.broker.waiting import BlockingPop
from oxcart.model.errors import OxcartError, error_for_code

if TYPE_CHECKING:
    from oxcart.broker.port import Code, ServedBroker

log = logging.getLogger("oxcart.worker")

_FIELDS = ("ats", "ox:cancel", "ox:category")


class CancelRequest(msgspec.Struct, frozen=True):
    """A request to cancel a running job.

    Attributes:
        id: The job.
        starts: The fencing number of the attempt to cancel.
        reason: Why.
        force: Whether the job has ended already, so that the result of its handler will be refused.
    """

    id: str
    starts: int
    reason: str
    force: bool = False


class CancellationInbox:
    """The inboxes of one worker in one server slot, over a connection of their own.

    Args:
        brokers: The worker's queues in the slot, by their numbers.
    """

    def __init__(self, brokers: Mapping[int, ServedBroker]) -> None:
        first = next(iter(brokers.values()))
        self._pop = BlockingPop(first.server, first.slot)
        self._queues = {
            inbox.encode(): number
            for number, broker in brokers.items()
            for inbox in broker.keys.inboxes(broker.client_id)
        }

    async def receive(self, seconds: float) -> tuple[int, CancelRequest] | None:
        """Waits for a request; returns the number of its queue and the request, or None."""
        popped = await self._pop.pop(self._queues, seconds)
        if popped is None:
            return None
        try:
            request = msgspec.json.decode(popped.member, type=CancelRequest)
        except msgspec.MsgspecError as error:
            log.warning("ignored a malformed request to cancel a job: %s", error)
            return None
        return self._queues[popped.key], request

    async def close(self) -> None:
        """Closes the connection."""
        await self._pop.close()


async def read_requests(
    broker: ServedBroker, attempts: Sequence[tuple[ServedBroker, str, int]]
) -> list[CancelRequest]:
    """Reads from the jobs which attempts to cancel.

    Args:
        broker: Reads; on the connection of a queue.
        attempts: The broker of each job (the queue or a lane of it), its id and its fencing number.
    """
    commands = [("HMGET", one.keys.job(job_id), *_FIELDS) for one, job_id, _ in attempts]
    found = []
    for (_, job_id, fencing), (starts, asked, category) in zip(
        attempts, await broker.caller.pipeline(commands), strict=True
    ):
        has_ended = category == b"cancelled"
        if starts == b"%d" % fencing and (asked is not None or has_ended):
            reason = (asked or b"cancelled").decode("utf-8", "replace")
            found.append(CancelRequest(job_id, fencing, reason, has_ended))
    return found


def refusal(code: Code, job_id: str, state: str = "") -> OxcartError:
    """Returns the error of a job that was not cancelled, from the code of `Cancelling.cancel`."""
    return (
        error_for_code(code, job_id, "cancel", state)
        if isinstance(code, int)
        else script_error("cancel", code)
    )
