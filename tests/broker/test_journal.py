"""A journal that a peer has spoiled counts as absent: the caller's next calls work, and write it anew."""

from __future__ import annotations

from typing import Literal

import pytest
import redis

from oxcart import Queue

#: What the key of a slot may hold instead of a number, a colon and a reply.
SPOILED = {
    "no colon": b"12",
    "no number": b"x:\x90",
    "empty": b"",
    "infinite": b"inf:\x90",
    "other type": None,
}


@pytest.mark.parametrize("protocol", ["bullmq", "bridge"])
@pytest.mark.parametrize("spoiled", SPOILED)
async def test_spoiled_journal_stops_no_call(
    url: str, store: redis.Redis, protocol: Literal["bullmq", "bridge"], spoiled: str
) -> None:
    async with Queue("email", url=url, protocol=protocol, remove_on_complete=False) as queue:
        await queue.add("one")
        journals = list(store.scan_iter("*ox:call:*"))
        assert journals
        value = SPOILED[spoiled]
        for key in journals:
            store.delete(key)
            if value is None:
                store.rpush(key, "x")
            else:
                store.set(key, value)
        await queue.add("two")
        await queue.add("three")
        assert sum((await queue.counts()).values()) == 3
        assert {store.type(key) for key in journals} == {"string"}


@pytest.mark.parametrize("reply", [b"", b"\xc1", b"\xdc\xff", b"\x05"])
async def test_repeated_call_with_a_truncated_reply_is_applied_by_its_ids(
    url: str, store: redis.Redis, reply: bytes
) -> None:
    async with Queue("email", url=url) as queue:
        await queue.add("one", job_id="mine")
        (journal,) = store.scan_iter("*ox:call:*")
        length: int = store.strlen(journal)
        assert length
        number = int(str(store.getrange(journal, 0, 0)))
        # As if the next call had been applied, and its reply been spoiled.
        store.set(journal, str(number + 1).encode() + b":" + reply)
        await queue.add("two", job_id="other")
        assert sum((await queue.counts()).values()) == 2


async def test_a_key_that_should_not_exist_stops_no_call(url: str, store: redis.Redis) -> None:
    async with Queue("email", url=url) as queue:
        store.rpush("bull:email:ox:call", "x")
        await queue.add("one")
        await queue.pause()
        assert sum((await queue.counts()).values()) == 1


async def test_unreadable_limits_are_replaced(url: str, store: redis.Redis) -> None:
    async with Queue("email", url=url) as queue:
        store.hset("bull:email:meta", "ox:limits", "9")
        await queue.limits.set_type_limit("slow", concurrent=2)
        found = (await queue.limits.type_limits()).get("slow")
        assert found is not None
        assert found.concurrent == 2
