"""``oxcart keys``: generates keys, and re-seals a queue under a new key."""

from __future__ import annotations

import asyncio
import base64

import pytest

from oxcart import Queue
from oxcart.broker.keyring import KeyRing
from tests.cli.conftest import Commands
from tests.servers import ValkeyServer

OLD, NEW = KeyRing.generate(), KeyRing.generate()


def add(server: ValkeyServer, ring: KeyRing | None, **where: str) -> str:
    async def act() -> str:
        async with Queue("mail", url=server.url, key_ring=ring, **where) as queue:  # type: ignore[arg-type]
            return (await queue.add("welcome", {"to": "ada"})).id

    return asyncio.run(act())


def read(server: ValkeyServer, ring: KeyRing, job_id: str) -> object:
    async def act() -> object:
        async with Queue("mail", url=server.url, key_ring=ring) as queue:
            job = await queue.jobs.get(job_id)
            return job and job.data

    return asyncio.run(act())


def test_a_key_is_32_bytes(ox: Commands) -> None:
    assert len(base64.b64decode(ox("keys", "generate").out)) == 32


def test_a_key_is_replaced(ox: Commands, clean: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = add(clean, KeyRing({"old": OLD}))
    monkeypatch.setenv("OXCART_KEYS", f"new:{NEW},old:{OLD}")
    assert "1 values would be re-sealed with key new" in ox("keys", "rotate", "mail", "--dry-run").out
    ended = ox("keys", "rotate", "mail", "--json")
    assert (ended.code, ended.json["mail"]["resealed"]) == (0, 1)
    assert "0 values re-sealed with key new; 1 were already" in ox("keys", "rotate", "mail").out
    assert read(clean, KeyRing({"new": NEW}), job_id) == {"to": "ada"}


def test_values_that_do_not_open_are_reported(
    ox: Commands, clean: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(clean, None)
    monkeypatch.setenv("MAIL_KEYS", f"new:{NEW}")
    ended = ox("keys", "rotate", "mail", "--keys-env", "MAIL_KEYS")
    assert ended.code == 1
    assert "1 left as they are (in plaintext: seal it with --migrate)" in ended.out
    assert ox("keys", "rotate", "mail", "--keys-env", "MAIL_KEYS", "--migrate").code == 0


def test_a_namespace(ox: Commands, clean: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    add(clean, KeyRing({"old": OLD}), protocol="bridge", namespace="b1")
    monkeypatch.setenv("OXCART_KEYS", f"new:{NEW},old:{OLD}")
    assert ox("keys", "rotate", "mail", "--namespace", "b1", "--json").json["mail"]["resealed"] == 1


def test_without_keys_it_is_not_begun(ox: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OXCART_KEYS", raising=False)
    ended = ox("keys", "rotate", "mail")
    assert (ended.code, "OXCART_KEYS is not set" in ended.err) == (2, True)
