"""Webhooks: ``Queue("orders", webhooks=Webhooks(secret))`` and ``queue.add(…, callback_url="https://…")``.

The documented path of `Webhooks`, which signs and sends the reports of finished jobs.
"""

from oxcart.engine.webhooks.sender import Webhooks

__all__ = ["Webhooks"]
