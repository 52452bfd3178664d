"""Every error that Oxcart raises, and every error that a handler may raise to steer its job.

`OxcartError` is the root of all of them. Below it are four families:

* `ValidationError`: a value is outside its bound; nothing was written.
* `JobError`: the job's state does not allow the call.
* `BrokerError`: the server, or the connection to it, is at fault. `Unacknowledged` names the jobs of an add
  whose answer is missing.
* `TemporaryError`, `PermanentError`, `RateLimited` and `JobCancelled`: a handler raises them.

A caller of ``job.result()`` catches `JobFailed` and `ResultTimeout`. Errors of the pipeline,
of ``oxcart.testing``, of webhooks and of the embedded server load their module when first used.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING, Any

from oxcart.model.errors import (
    AccessDenied,
    AmbiguousId,
    BrokerError,
    BrokerTimeout,
    BrokerUnavailable,
    CannotCancel,
    ChainTooLong,
    CrossSlotError,
    DecryptionError,
    FailedChildren,
    JobError,
    JobFailed,
    JobLocked,
    JobNotFound,
    LeaseLost,
    MissingExtra,
    NeverConnected,
    NotReplicated,
    NotSupported,
    OutcomeUnknown,
    OxcartError,
    ParentConflict,
    ParentMissing,
    PartitionNotEmpty,
    PayloadError,
    PayloadTooLarge,
    PendingChildren,
    QueueBusy,
    ResultTimeout,
    SchedulerOwned,
    ScriptError,
    SealError,
    TreeTooLarge,
    Unacknowledged,
    Undecodable,
    UnknownDependency,
    ValidationError,
    WrongState,
)
from oxcart.model.failure import JobCancelled, PermanentError, RateLimited, TemporaryError
from oxcart.model.steps import SignalTimeout, StepError

if TYPE_CHECKING:
    from oxcart.broker.addresses import AddressBlocked
    from oxcart.broker.embedded import EmbeddedServerError
    from oxcart.engine.processes import HandlerCrashed
    from oxcart.http.refused import ApiRefused
    from oxcart.spark.errors import WorkerLate
    from oxcart.spark.lake.versions import LakeConflict, LakeError
    from oxcart.spark.session import JavaMissing
    from oxcart.testing import DrainTimeout, EndlessJobs

_PLACES = {
    "AddressBlocked": "oxcart.broker.addresses",
    "ApiRefused": "oxcart.http.refused",
    "DrainTimeout": "oxcart.testing",
    "EmbeddedServerError": "oxcart.broker.embedded",
    "EndlessJobs": "oxcart.testing",
    "HandlerCrashed": "oxcart.engine.processes",
    "JavaMissing": "oxcart.spark.session",
    "LakeConflict": "oxcart.spark.lake.versions",
    "LakeError": "oxcart.spark.lake.versions",
    "WorkerLate": "oxcart.spark.errors",
}

__all__ = [
    "AccessDenied",
    "AddressBlocked",
    "AmbiguousId",
    "ApiRefused",
    "BrokerError",
    "BrokerTimeout",
    "BrokerUnavailable",
    "CannotCancel",
    "ChainTooLong",
    "CrossSlotError",
    "DecryptionError",
    "DrainTimeout",
    "EmbeddedServerError",
    "EndlessJobs",
    "FailedChildren",
    "HandlerCrashed",
    "JavaMissing",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobLocked",
    "JobNotFound",
    "LakeConflict",
    "LakeError",
    "LeaseLost",
    "MissingExtra",
    "NeverConnected",
    "NotReplicated",
    "NotSupported",
    "OutcomeUnknown",
    "OxcartError",
    "ParentConflict",
    "ParentMissing",
    "PartitionNotEmpty",
    "PayloadError",
    "PayloadTooLarge",
    "PendingChildren",
    "PermanentError",
    "QueueBusy",
    "RateLimited",
    "ResultTimeout",
    "SchedulerOwned",
    "ScriptError",
    "SealError",
    "SignalTimeout",
    "StepError",
    "TemporaryError",
    "TreeTooLarge",
    "Unacknowledged",
    "Undecodable",
    "UnknownDependency",
    "ValidationError",
    "WorkerLate",
    "WrongState",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'oxcart.errors' has no attribute {name!r}")
    value = globals()[name] = getattr(_import(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
