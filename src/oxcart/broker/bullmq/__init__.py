"""The BullMQ 5.62.0 wire protocol: keys, codec, scripts and the broker that uses them."""

from oxcart.broker.bullmq.broker import BullMQBroker
from oxcart.broker.bullmq.keys import Keys

__all__ = ["BullMQBroker", "Keys"]
