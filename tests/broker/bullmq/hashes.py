"""The stored hash of a claimed job."""

from __future__ import annotations

from oxcart.broker.bullmq.claimed import BullMQClaim
from oxcart.broker.port import ClaimedJob


def hash_of(job: ClaimedJob) -> dict[bytes, bytes]:
    assert isinstance(job, BullMQClaim)
    return job.fields
