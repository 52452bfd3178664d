"""Errors that a processor raises to choose the outcome of its job."""

from oxcart.compat.bullmq.custom_errors.delayed_error import DelayedError
from oxcart.compat.bullmq.custom_errors.rate_limit_error import RateLimitError
from oxcart.compat.bullmq.custom_errors.unrecoverable_error import UnrecoverableError
from oxcart.compat.bullmq.custom_errors.waiting_children_error import WaitingChildrenError
from oxcart.compat.bullmq.custom_errors.waiting_error import WaitingError

__all__ = [
    "DelayedError",
    "RateLimitError",
    "UnrecoverableError",
    "WaitingChildrenError",
    "WaitingError",
]
