"""``oxcart access``: keys are shown once, work over HTTP, are rotated and revoked, and leave a log."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from tests.cli.conftest import Commands, Program
from tests.cli.test_serve import address

Start = Callable[..., Program]


def status(url: str, key: str, path: str = "/api/v1/queues/q/pause") -> int:
    return httpx.post(f"{url}{path}", headers={"X-API-Key": key}, timeout=60).status_code


def test_a_key_works_is_rotated_and_revoked(ox: Commands, start: Start) -> None:
    made = ox("access", "create", "billing", "--grant", "operator@q*", "--expires", "90d")
    assert made.code == 0, made
    key = made.out.strip()
    assert key.startswith("oxc_")
    assert key not in made.err
    (row,) = ox("access", "list", "--json").json
    assert (row["name"], row["grants"], row["state"], "hash" in row) == (
        "billing", ["operator@q*"], "active", False,
    )  # fmt: skip
    program = start("serve", "--port", "0", "--queues", "q,other")
    url = address(program)
    assert (status(url, key), status(url, "")) == (200, 401)
    assert status(url, key, "/api/v1/queues/other/pause") == 404
    new = ox("access", "rotate", row["id"], "--json").json
    assert new["replaces"] == row["id"]
    assert new["expires_ms"] - new["created_ms"] == 90 * 86_400_000
    assert (status(url, new["key"]), status(url, key)) == (200, 200)  # the old key works for a day
    rows = {one["id"]: one for one in ox("access", "list", "--json").json}
    assert rows[row["id"]]["expires_ms"] <= new["created_ms"] + 86_400_000
    assert ox("access", "revoke", row["id"]).code == 0
    assert ox("access", "rotate", row["id"]).code == 1
    assert ox("access", "forget", new["id"]).code == 1
    assert ox("access", "forget", row["id"]).code == 0
    log = ox("access", "audit", "--json").json
    assert {entry["action"] for entry in log} == {"POST /api/v1/queues/{name}/pause"}
    assert {entry["caller"] for entry in log} == {row["id"], new["id"]}
    assert "billing" in ox("access", "audit", "--queue", "q").out
    seen = "\n".join(program.seen)
    assert key not in seen
    assert new["key"] not in seen


def test_stored_keys_allow_listening_beyond_this_machine(ox: Commands, start: Start) -> None:
    assert ox("serve", "--port", "0", "--queues", "q", "--host", "0.0.0.0").code == 2
    assert ox("access", "create", "ops", "--grant", "admin").code == 0
    program = start("serve", "--port", "0", "--queues", "q", "--host", "0.0.0.0")
    program.wait_for("HTTP API on http")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "x", "--grant", "chief"], "role must be"),
        (["create", " ", "--grant", "admin"], "name must be"),
        (["create", "x", "--grant", "admin", "--expires", "soon"], "expires must be"),
        (["revoke", "none"], "there is no API key none"),
    ],
)
def test_wrong_usage_is_named(ox: Commands, arguments: list[str], words: str) -> None:
    ended = ox("access", *arguments)
    assert ended.code in (1, 2)
    assert words in ended.err
