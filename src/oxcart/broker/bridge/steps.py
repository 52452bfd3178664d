"""Durable steps and signals of jobs, in the hash in which our workers record a job's runs."""

from __future__ import annotations

from oxcart.broker.bridge.part import TypePart
from oxcart.broker.bridge.scripts import load
from oxcart.broker.port.steps import Steps, check_signal_room
from oxcart.model.errors import error_for_code
from oxcart.model.steps import MOST_SIGNAL_BYTES


class TypeSteps(TypePart, Steps):
    """The steps of the jobs of one type."""

    async def keep(self, job_id: str, token: str, name: str, record: bytes) -> None:
        waiting = self._broker.keys.waiting()
        code = await self._broker.caller.again(load("set_step"), waiting, job_id, token, name, record)
        if code < 0:
            raise error_for_code(code, job_id, "set_step")

    async def receive(
        self, job_id: str, token: str, name: str, signal: str, *, wait: bytes, arrived: bytes, late: bytes
    ) -> bytes:
        args = (job_id, token, name, signal, wait, arrived, late)
        waiting = self._broker.keys.waiting()
        code, *found = await self._broker.caller.again(load("receive_signal"), waiting, *args)
        if code < 0:
            raise error_for_code(code, job_id, "receive_signal")
        record: bytes = found[0]
        return record

    async def signal(self, job_id: str, signal: str, body: bytes) -> int:
        broker = self._broker
        args = (job_id, broker.queue, signal, body, MOST_SIGNAL_BYTES)
        code = await broker.caller.once(load("signal"), broker.keys.waiting(), *args)
        if code < 0:
            raise error_for_code(code, job_id, "signal")
        return check_signal_room(code, job_id)
