"""Operations on many jobs that run in the background of the server, with their progress."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from litestar import get
from litestar.params import FromPath
from msgspec import Meta

from oxcart.broker.progress import OnProgress, Progress
from oxcart.http import values
from oxcart.http.errors import ApiError, not_found, problem_of
from oxcart.http.routes import Api, answers
from oxcart.http.times import rfc3339_ms
from oxcart.model.access import Role

log = logging.getLogger("oxcart.http")

#: Operations that are remembered, ended ones first to go, and those that run at once.
REMEMBERED, MOST = 200, 8


class Operation(msgspec.Struct, kw_only=True):
    """An operation on many jobs."""

    id: str
    queue: str
    action: Annotated[str, Meta(examples=["retry"])]
    caller: str
    state: Literal["running", "done", "failed"] = "running"
    step: Annotated[str, Meta(description="What it works on now, for example delayed.")] = ""
    done: Annotated[int, Meta(description="Jobs that it has processed.")] = 0
    total: Annotated[int, Meta(description="About how many there were when it began.")] = 0
    result: Annotated[
        dict[str, Any] | None, Meta(description="What the same call returns without background.")
    ] = None
    error: str | None = None
    started_at: values.Time = ""
    ended_at: values.Time | None = None


class OperationList(msgspec.Struct):
    """Operations, latest first."""

    operations: list[Operation]


Work = Callable[[OnProgress], Awaitable[msgspec.Struct]]


class Operations:
    """The operations of one server. They end with it; what they have changed until then stays."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Operation] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, queue: str, action: str, caller: str, work: Work) -> Operation:
        """Starts an operation.

        Raises:
            ApiError: 429 while too many are under way.
        """
        if len(self._tasks) >= MOST:
            error = ApiError(429, "quota_exceeded", f"{MOST} operations are under way; try again later")
            error.headers["Retry-After"] = "5"
            raise error
        made = Operation(id=str(uuid.uuid4()), queue=queue, action=action, caller=caller, started_at=_now())
        self._known[made.id] = made
        while len(self._known) > REMEMBERED:
            ended = next((one for one in self._known.values() if one.state != "running"), None)
            if ended is None:
                break
            del self._known[ended.id]
        task = asyncio.create_task(self._run(made, work), name=f"oxcart-http-operation {made.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return made

    async def _run(self, made: Operation, work: Work) -> None:
        def tell(at: Progress) -> None:
            made.step, made.done, made.total = at.step, at.done, at.total

        try:
            made.result = msgspec.to_builtins(await work(tell))
            made.state = "done"
        except asyncio.CancelledError:
            made.state, made.error = "failed", "the server ended; repeat the operation for the rest"
            raise
        except Exception as error:
            status, problem = problem_of(error)
            if status == 500:
                log.error("operation %s on queue %s failed", made.id, made.queue, exc_info=error)
            made.state, made.error = "failed", problem.message
        finally:
            made.ended_at = _now()

    def all(self) -> list[Operation]:
        """Returns them, latest first."""
        return list(reversed(self._known.values()))

    def get(self, operation_id: str) -> Operation | None:
        """Returns one, or None."""
        return self._known.get(operation_id)

    async def close(self) -> None:
        """Ends those that run."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _now() -> str:
    return rfc3339_ms(int(time.time() * 1000))


@get(
    "/api/v1/operations",
    summary="List operations in the background",
    responses=answers(ok=(200, OperationList, "Operations of this server, latest first.")),
    opt={"role": Role.OBSERVER},
)
async def operations(service: Api) -> OperationList:
    """Lists operations on many jobs that were started with ``background``."""
    return OperationList([one for one in service.operations.all() if one.queue in service.queues])


@get(
    "/api/v1/operations/{operation_id:str}",
    summary="Read the progress of an operation",
    responses=answers(404, ok=(200, Operation, "The operation.")),
    opt={"role": Role.OBSERVER},
)
async def operation(service: Api, operation_id: FromPath[str]) -> Operation:
    """Returns how far an operation is, and its result once it is done."""
    found = service.operations.get(operation_id)
    if found is None or found.queue not in service.queues:
        raise not_found(f"operation {operation_id}")
    return found


ROUTES = [operations, operation]
