"""Samples job types of Bridge by the verbs of their brokers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from oxcart.broker.bridge.part import TypePart
from oxcart.broker.port.sampling import Crew, Sample, Sampling, Start
from oxcart.broker.replies import pairs
from oxcart.broker.sampling import events_command, sample_by_verbs, sampled_event


class TypeSampling(TypePart, Sampling):
    """Samples a job type by itself: its lengths are counted, not stored."""

    @property
    def place(self) -> Hashable:
        return id(self._broker)

    async def sample(self, queues: Sequence[Sampling], starts: Sequence[Start]) -> list[Sample]:
        return [await self._sample(start) for start in starts]

    async def _sample(self, start: Start) -> Sample:
        broker, made = self._broker, await sample_by_verbs(self._broker)
        raw = await broker.caller.command(*events_command(broker.keys.events(), start.since, start.most))
        events = [sampled_event(entry_id.decode(), pairs(fields)) for entry_id, fields in raw]
        made.events, made.cut = events if start.since else events[::-1], len(events) >= start.most
        return made

    async def crews(self, queues: Sequence[Sampling]) -> list[Crew]:
        return [Crew(workers=await self._broker.workers()) for _ in queues]
