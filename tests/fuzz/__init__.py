"""Fuzzing (`make fuzz`): every script of BullMQ's protocol on keys as a hostile peer would leave them."""
