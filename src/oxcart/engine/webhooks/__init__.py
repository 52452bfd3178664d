"""Webhooks: a job with a ``callback_url`` is reported to that URL when it has finished.

`outbox` finds finished jobs and enqueues their webhooks, `queue` is where they wait, `sender` signs and sends
them.
"""
