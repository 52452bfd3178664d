"""The states of jobs in storage, how an attempt ended, and how a script answers for one item."""

from __future__ import annotations

from enum import StrEnum


class OutcomeKind(StrEnum):
    """How an attempt ended; the value is the letter that scripts read."""

    COMPLETED = "c"
    #: Failed for good.
    FAILED = "f"
    #: To be tried again at once.
    RETRY = "r"
    #: To be tried again, or for the first time, after a delay.
    DELAY = "d"
    #: Back to the front of the queue, as if it had not been claimed.
    GIVE_BACK = "w"
    AWAIT_CHILDREN = "h"
    #: Back to the front of the queue, from which no job is claimed for a while.
    HOLD_QUEUE = "l"


#: The answer for one item: an `oxcart.model.errors.ReplyCode`, or a text if the server refused it.
Code = int | str

#: The states in which brokers count and list jobs; their names are those of BullMQ's keys.
STATES = ("wait", "paused", "active", "prioritized", "delayed", "waiting-children", "completed", "failed")
