"""Durable steps and signals of jobs, in the jobs' own hashes."""

from __future__ import annotations

from oxcart.broker.bullmq.part import QueuePart
from oxcart.broker.bullmq.scripts import load
from oxcart.broker.port.steps import Steps, check_signal_room
from oxcart.model.errors import ReplyCode, error_for_code
from oxcart.model.steps import MOST_SIGNAL_BYTES


class QueueSteps(QueuePart, Steps):
    """The steps of the jobs of a queue and its lanes."""

    async def keep(self, job_id: str, token: str, name: str, record: bytes) -> None:
        await self._broker.change("set_step", job_id, token, name, record, harmless=True)

    async def receive(
        self, job_id: str, token: str, name: str, signal: str, *, wait: bytes, arrived: bytes, late: bytes
    ) -> bytes:
        broker = self._broker
        args = (job_id, token, name, signal, wait, arrived, late)
        code, *found = await broker.caller.again(load("receive_signal"), broker.keys.meta(), *args)
        if code == ReplyCode.JOB_NOT_FOUND and (lane := await broker.lanes.holder(job_id)) is not None:
            code, *found = await broker.caller.again(load("receive_signal"), lane.keys.meta(), *args)
        if code < 0:
            raise error_for_code(code, job_id, "receive_signal")
        record: bytes
        (record,) = found
        return record

    async def signal(self, job_id: str, signal: str, body: bytes) -> int:
        code = await self._broker.change("signal", job_id, signal, body, MOST_SIGNAL_BYTES)
        return check_signal_room(code, job_id)
