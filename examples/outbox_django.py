"""Enqueue on commit with Django: an outbox. Run it: ``python examples/outbox_django.py``.

``transaction.on_commit`` alone loses jobs: a process that dies right after the commit never calls it. So a
job is written to a table first, in the same transaction; ``on_commit`` publishes it and deletes its row, and
whatever was left behind is published by the next call, under the same idempotency key: there is one job.
Ended jobs must be kept longer than rows may lie there, because a key is free again once its job is removed.

A real project has the models in an app, and calls ``publish`` from a management command or a schedule too.
"""

import os
import sys
from typing import Any

import django
from django.conf import settings
from django.db import connection, models, transaction

from oxcart.sync import Queue

orders = Queue("orders")
NAME = os.environ.get("SHOP_DB", ":memory:")
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": NAME}})
django.setup()


class Order(models.Model):
    """What the service is about."""

    customer = models.TextField()

    class Meta:
        """Whose it is."""

        app_label = "shop"


class Outbox(models.Model):
    """Jobs that are not published yet."""

    key = models.CharField(max_length=256, unique=True)
    name = models.TextField()
    data = models.JSONField()

    class Meta:
        """Whose it is."""

        app_label = "shop"


@orders.job
def confirm(order: int, customer: str) -> str:
    """Runs in a worker: ``oxcart work examples.outbox_django:orders``."""
    return f"{customer} knows of order {order}"


def enqueue(key: str, name: str, data: dict[str, Any]) -> None:
    """Adds a job when the transaction commits, and not if it does not."""
    Outbox.objects.create(key=key, name=name, data=data)
    transaction.on_commit(publish, robust=True)


def publish(most: int = 100) -> int:
    """Adds what waits in the outbox, oldest first; returns how many."""
    with transaction.atomic():
        rows = list(Outbox.objects.select_for_update().order_by("id")[:most])
        orders.add_many([(row.name, row.data, {"idempotency_key": row.key}) for row in rows])
        Outbox.objects.filter(id__in=[row.id for row in rows]).delete()
    return len(rows)


@transaction.atomic
def place(customer: str) -> int:
    """An order with its job, both or none."""
    order = Order.objects.create(customer=customer)
    enqueue(f"confirm-{order.id}", "confirm", {"order": order.id, "customer": customer})
    if customer == "nobody":
        raise ValueError("nobody cannot order")
    return int(order.id)


def main(customers: list[str]) -> None:
    """Publishes what an earlier run has left, then places orders."""
    known = connection.introspection.table_names()
    with connection.schema_editor() as editor:
        for model in (Order, Outbox):
            if model._meta.db_table not in known:
                editor.create_model(model)
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
