"""A FastAPI service and its worker: it enqueues, reports, cancels, and approves a job that waits for it.

    uvicorn examples.service:app --port 8000        # the service
    oxcart work examples.service:orders             # the worker, in another terminal
    curl -H 'content-type: application/json' -d '{"item": "book", "cents": 1500}' localhost:8000/orders
    curl -X POST localhost:8000/orders/<id>/approve
    curl localhost:8000/orders/<id>

Needs ``pip install fastapi uvicorn``.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel

from oxcart import Queue, RunningJob
from oxcart.errors import JobNotFound, SignalTimeout, WrongState

orders = Queue("orders", attempts=5)


async def charge(item: str, cents: int) -> str:
    """Stands for a call to a bank."""
    return f"{cents} cents for a {item}"


@orders.job(timeout="30s")
async def fulfil(job: RunningJob, item: str, cents: int) -> dict[str, str]:
    """Charges once, whatever happens to the worker; a large order waits for an approval."""
    if cents >= 1000:
        try:
            await job.wait_signal("approved", timeout="7d")
        except SignalTimeout:
            return {"state": "nobody approved it"}
    receipt = await job.step("charge", charge, item, cents)
    await job.update_progress(100)
    return {"state": "shipped", "receipt": receipt}


class Order(BaseModel):
    """What a client orders."""

    item: str
    cents: int


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Closes the connection with the service."""
    async with orders:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def place(order: Order, idempotency_key: Annotated[str | None, Header()] = None) -> dict[str, Any]:
    """Accepts an order; the same key makes no second one."""
    job = await fulfil.using(idempotency_key=idempotency_key).enqueue(item=order.item, cents=order.cents)
    return {"id": job.id, "created": job.created}


@app.get("/orders/{order_id}")
async def show(order_id: str) -> dict[str, Any]:
    """Shows the state of an order."""
    job = await orders.jobs.get(order_id)
    if job is None or job.state is None:
        raise HTTPException(404, "no such order")
    return {"state": job.state, "result": job.return_value, "steps": [step.name for step in job.steps]}


@app.post("/orders/{order_id}/approve")
async def approve(order_id: str) -> dict[str, bool]:
    """Lets a large order go on; also before its worker waits for it."""
    try:
        return {"waited": await orders.jobs.signal(order_id, "approved")}
    except JobNotFound as error:
        raise HTTPException(404, "no such order") from error
    except WrongState as error:
        raise HTTPException(409, "the order is settled") from error


@app.delete("/orders/{order_id}")
async def cancel(order_id: str) -> dict[str, str]:
    """Cancels an order that is not settled."""
    try:
        return {"cancelled": await orders.jobs.cancel(order_id, "the customer changed their mind")}
    except JobNotFound as error:
        raise HTTPException(404, "no such order") from error
    except WrongState as error:
        raise HTTPException(409, "the order is settled") from error
