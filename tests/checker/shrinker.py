"""Shrinks the faults of a failing run to the shortest schedule that still fails, by delta debugging."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from tests.checker.nemesis import Fault


async def shrink(
    faults: Sequence[Fault], fails: Callable[[list[Fault]], Awaitable[bool]], most: int = 40
) -> list[Fault]:
    """Removes faults as long as the run fails without them.

    Args:
        faults: The schedule of a failing run.
        fails: Runs a schedule; returns whether it fails.
        most: How many runs may be made.

    Returns:
        The shortest schedule that was seen to fail. If no runs are left it may not be minimal.
    """
    left, parts, runs = list(faults), 1, 0
    while left and runs < most:
        size = -(-len(left) // parts)
        for start in range(0, len(left), size):
            fewer = left[:start] + left[start + size :]
            runs += 1
            if await fails(fewer):
                left, parts = fewer, max(parts - 1, 1)
                break
            if runs >= most:
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(left))
    return left
