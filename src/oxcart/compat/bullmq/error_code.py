"""The codes of refused calls."""

from __future__ import annotations

from enum import Enum


class ErrorCode(Enum):
    """Why a call was refused; ``error.code`` of the raised error."""

    JobNotExist = -1
    JobLockNotExist = -2
    JobNotInState = -3
    JobPendingDependencies = -4
    ParentJobNotExist = -5
    JobLockMismatch = -6
    ParentJobCannotBeReplaced = -7
    JobHasFailedChildren = -9
    SchedulerJobIdCollision = -10
    SchedulerJobSlotsBusy = -11
