"""Finds the ids of jobs by their beginning, in steps that leave the server free between."""

from __future__ import annotations

from collections.abc import Callable

from oxcart.broker.caller import Caller
from oxcart.broker.replies import text

#: Keys that one step of a scan looks at.
STEP = 1000


async def scan_ids(
    caller: Caller, pattern: str, kind: str, id_of: Callable[[str], str | None], most: int
) -> list[str]:
    """Returns the ids in the keys of a pattern, sorted, and stops once there are more than ``most``.

    Args:
        caller: The connection.
        pattern: The pattern of the keys.
        kind: The type of the keys.
        id_of: Returns the id in a key, or None.
        most: How many ids suffice.
    """
    found: set[str] = set()
    cursor = b"0"
    while len(found) <= most:
        cursor, keys = await caller.command("SCAN", cursor, "MATCH", pattern, "COUNT", STEP, "TYPE", kind)
        found |= {job_id for key in keys if (job_id := id_of(text(key))) is not None}
        if cursor == b"0":
            break
    return sorted(found)
