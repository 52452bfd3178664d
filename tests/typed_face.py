"""What a user writes, for type checkers: a call has the type that it states, and a wrong one is refused.

mypy checks it with the rest of the code, and pyright in `tests/test_typed_face.py`. Both report a comment
that ignores nothing. Nothing here runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from oxcart import Queue, Worker
from oxcart.engine.running import RunningJob
from oxcart.engine.sync_running import SyncRunningJob
from oxcart.handle import JobHandle
from oxcart.sync import JobHandle as SyncJobHandle
from oxcart.sync import Queue as SyncQueue

emails = Queue("emails")


@dataclass
class Receipt:
    """A result of a type of the user's own."""

    cents: int


async def charge(account: str, cents: int) -> Receipt:
    return Receipt(cents)


def print_receipt(receipt: Receipt, copies: int = 1) -> bytes:
    return b"%d" % receipt.cents * copies


@emails.job
async def bare(to: str, copies: int = 1) -> list[str]:
    return [to] * copies


@emails.job(attempts=5, timeout="30s", backoff="1s")
async def with_options(to: str) -> dict[str, int]:
    return {to: 1}


@emails.job(attempts=2)
async def with_job(job: RunningJob, account: str, cents: int) -> Receipt:
    receipt = await job.step("charge", charge, account, cents)
    assert_type(receipt, Receipt)
    assert_type(await job.step("print", print_receipt, receipt, copies=2), bytes)
    await job.step("charge", charge, account)  # type: ignore[call-overload]
    await job.log("charged")
    job.log("lost")  # type: ignore[unused-coroutine]
    return receipt


@emails.job
def in_thread(job: SyncRunningJob, account: str) -> Receipt:
    assert_type(job.step("print", print_receipt, Receipt(1)), bytes)
    job.log("kept")
    return Receipt(1)


async def adds() -> None:
    assert_type(await bare.enqueue(to="ada"), JobHandle[list[str]])
    assert_type(await bare.enqueue("ada", copies=2), JobHandle[list[str]])
    assert_type(await with_options.using(delay="5m").enqueue(to="ada"), JobHandle[dict[str, int]])
    assert_type(await with_job.enqueue(account="a", cents=1), JobHandle[Receipt])
    assert_type(await in_thread.enqueue(account="a"), JobHandle[Receipt])
    assert_type(await (await with_job.enqueue("a", 1)).result(timeout=10), Receipt)


async def wrong_adds() -> None:
    await bare.enqueue()  # type: ignore[call-arg]
    await bare.enqueue(to=5)  # type: ignore[arg-type]
    await bare.enqueue(to="ada", copy=2)  # type: ignore[call-arg]
    await with_job.enqueue(account="a", cents="1")  # type: ignore[arg-type]
    await with_options.using(dealy="5m").enqueue(to="ada")  # type: ignore[call-arg]
    await emails.add("bare", {"to": "ada"}, atempts=3)  # type: ignore[call-arg]


async def calls() -> None:
    assert_type(await bare("ada"), list[str])
    assert_type(await with_options("ada"), dict[str, int])
    bare("ada")  # type: ignore[unused-coroutine]
    async with Worker(emails, concurrency=10).running():
        pass


def synchronous() -> None:
    letters = SyncQueue("letters")

    @letters.job(attempts=5)
    def send(to: str) -> Receipt:
        return Receipt(len(to))

    handle = send.enqueue(to="ada")
    assert_type(handle, SyncJobHandle[Receipt])
    assert_type(handle.result(timeout=10), Receipt)
    assert_type(send("ada"), Receipt)
    send.enqueue(5)  # type: ignore[arg-type]
    letters.add("send", {"to": "ada"}, atempts=3)  # type: ignore[call-arg]
