"""Enqueue on commit with SQLAlchemy: an outbox. Run it: ``python examples/outbox_sqlalchemy.py``.

A job that belongs to a row must be added if that row is committed, and only then. So it is written to a table
first, in the same transaction. After the commit it is published, and its row deleted. A process that dies
between them leaves the row, and the next ``publish`` adds the job again, under the same idempotency key:
there is one job.
Ended jobs must be kept longer than rows may lie there, because a key is free again once its job is removed.
"""

import logging
import os
import sys
import tempfile
from typing import Any

from sqlalchemy import JSON, create_engine, event, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from oxcart.errors import OxcartError
from oxcart.sync import Queue

orders = Queue("orders")
folder = tempfile.TemporaryDirectory()
engine = create_engine(f"sqlite:///{os.environ.get('SHOP_DB', f'{folder.name}/shop.db')}")
sessions = sessionmaker(engine)


class Base(DeclarativeBase):
    """The tables."""


class Order(Base):
    """What the service is about."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]


class Outbox(Base):
    """Jobs that are not published yet."""

    __tablename__ = "outbox"
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    data: Mapped[dict[str, Any]] = mapped_column(JSON)


@orders.job
def confirm(order: int, customer: str) -> str:
    """Runs in a worker: ``oxcart work examples.outbox_sqlalchemy:orders``."""
    return f"{customer} knows of order {order}"


def enqueue(session: Session, key: str, name: str, data: dict[str, Any]) -> None:
    """Adds a job when the session commits, and not if it does not."""
    session.add(Outbox(key=key, name=name, data=data))
    session.info["enqueued"] = True


@event.listens_for(sessions, "after_commit")
def publish_soon(session: Session) -> None:
    """Publishes what was just committed; what fails here is left to the next ``publish``."""
    if session.info.pop("enqueued", False):
        try:
            publish()
        except OxcartError as error:
            logging.warning("not published yet: %s", error)


def publish(most: int = 100) -> int:
    """Adds what waits in the outbox, oldest first; call it every few seconds too. Returns how many."""
    with sessions() as session:
        waiting = select(Outbox).order_by(Outbox.id).limit(most).with_for_update(skip_locked=True)
        rows = session.scalars(waiting).all()
        orders.add_many([(row.name, row.data, {"idempotency_key": row.key}) for row in rows])
        for row in rows:
            session.delete(row)
        session.commit()
        return len(rows)


def place(customer: str) -> int:
    """An order with its job, both or none."""
    with sessions() as session:
        order = Order(customer=customer)
        session.add(order)
        session.flush()
        enqueue(session, f"confirm-{order.id}", "confirm", {"order": order.id, "customer": customer})
        if customer == "nobody":
            raise ValueError("nobody cannot order")
        session.commit()
        return order.id


def main(customers: list[str]) -> None:
    """Publishes what an earlier run has left, then places orders."""
    Base.metadata.create_all(engine)
    print("left behind:", publish())
    for customer in customers:
        try:
            print("order", place(customer))
        except ValueError as error:
            print(error)
    print("jobs:", sorted(job.data["customer"] for job in orders.jobs.list("waiting")))
    orders.close()


if __name__ == "__main__":
    main(sys.argv[1:] or ["ada", "nobody", "grace"])
