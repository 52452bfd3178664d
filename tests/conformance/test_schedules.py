"""Schedules on every protocol: pause and resume."""

from __future__ import annotations

from tests.conformance.conftest import Venue


async def test_a_paused_schedule_makes_no_run_until_it_is_resumed(venue: Venue) -> None:
    venue.needs("schedules")
    queue = venue.queue()
    schedules = queue.schedules

    async def rule() -> tuple[bool, str | None]:
        found = await schedules.get("digest")
        assert found is not None
        return found.paused, found.schedule.cron

    await schedules.upsert("digest", cron="0 7 1 1 *", name="send", data={"to": "all"})
    before = await schedules.get("digest")
    assert before is not None
    assert not before.paused
    for _ in range(2):  # pausing again changes nothing
        assert await schedules.pause("digest")
        paused = await schedules.get("digest")
        assert paused is not None
        assert (paused.paused, paused.next_job_id) == (True, None)
        assert (paused.name, paused.data, paused.fired) == ("send", {"to": "all"}, before.fired)
        assert (await queue.counts())["delayed"] == 0
    assert [one.paused for one in await schedules.list()] == [True]
    # A service that sets its schedules when it starts does not resume it.
    await schedules.upsert("digest", cron="0 7 1 1 *", name="send", data={"to": "all"})
    assert await rule() == (True, "0 7 1 1 *")
    await schedules.upsert("digest", cron="0 8 1 1 *", name="send", data={"to": "some"})
    assert await rule() == (True, "0 8 1 1 *")
    for _ in range(2):
        assert await schedules.resume("digest")
        resumed = await schedules.get("digest")
        assert resumed is not None
        assert (resumed.paused, resumed.data, resumed.fired) == (False, {"to": "some"}, before.fired)
        assert resumed.next_ms == before.next_ms + 3_600_000
    assert not await schedules.pause("none")
    assert not await schedules.resume("none")
    await schedules.pause("digest")
    assert await schedules.remove("digest")
    assert await schedules.count() == 0
