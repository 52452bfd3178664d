"""The part of a broker that keeps durable steps and signals."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from oxcart.model.steps import MOST_SIGNAL_BYTES, StepError


class SignalCode(IntEnum):
    """What a script did with a signal. A refusal is a negative `ReplyCode`."""

    #: Too many bytes of signals wait for the job.
    NO_ROOM = 0
    STORED = 1
    #: The job waited for it, and was woken.
    WOKEN = 2


class Steps(Protocol):
    """What jobs remember of their runs, and signals for them; in the queue and its lanes."""

    async def keep(self, job_id: str, token: str, name: str, record: bytes) -> None:
        """Stores the record of a step of a running job, under its lease. Storing it again is harmless.

        Raises:
            LeaseLost: The caller has no lease; nothing was written.
        """

    async def receive(
        self, job_id: str, token: str, name: str, signal: str, *, wait: bytes, arrived: bytes, late: bytes
    ) -> bytes:
        """Gives a running job the oldest signal of a name; returns the record of the wait.

        A wait that is over stays as it is, so the call may be repeated.

        Args:
            job_id: The job.
            token: Its lease.
            name: The name of the wait among the job's steps.
            signal: The signal's name.
            wait: The header of a wait that begins.
            arrived: The header of a wait whose signal is there.
            late: The header of a wait that is too late; empty if it is not.

        Raises:
            LeaseLost: The caller has no lease; nothing was written.
        """

    async def signal(self, job_id: str, signal: str, body: bytes) -> int:
        """Stores a signal for a job, and wakes the job if it waits for it: ``STORED`` or ``WOKEN``.

        Raises:
            JobNotFound: There is no such job.
            WrongState: It has ended.
            StepError: Too many bytes of signals wait for it.
        """


def check_signal_room(code: int, job_id: str) -> int:
    """Returns the answer of ``signal``.

    Raises:
        StepError: Too many bytes of signals wait for the job.
    """
    if code == SignalCode.NO_ROOM:
        bound = f"at most {MOST_SIGNAL_BYTES} bytes of signals that a job has not received"
        raise StepError("signals", bound, job_id)
    return code
