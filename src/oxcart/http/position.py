"""Positions of the event stream: what a client has of each queue, as text for ``Last-Event-ID``."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

from oxcart.broker.port.streams import LanePlace
from oxcart.model.errors import ValidationError


class Position:
    """The last event read of each queue, and of the lanes of each queue.

    Args:
        ids: The id of the last event of each queue.
        lanes: The place of the last event of the lanes of each queue.
    """

    def __init__(self, ids: Mapping[str, str], lanes: Mapping[str, LanePlace] | None = None) -> None:
        self.ids = dict(ids)
        self.lanes = dict(lanes or {})
        # Every message has the text, and moves one queue of perhaps hundreds.
        self._id_texts = {name: _id_text(name, event_id) for name, event_id in self.ids.items()}
        self._lane_texts = {name: _lane_text(name, place) for name, place in self.lanes.items()}

    def move(self, queue: str, event_id: str) -> None:
        """Moves behind an event of a queue."""
        self.ids[queue] = event_id
        self._id_texts[queue] = _id_text(queue, event_id)

    def move_lanes(self, queue: str, place: LanePlace) -> None:
        """Moves behind an event of a queue's lanes."""
        self.lanes[queue] = place
        self._lane_texts[queue] = _lane_text(queue, place)

    @classmethod
    def parse(cls, text: str) -> Position:
        """Reads a position.

        Raises:
            ValidationError: The text is none.
        """
        ids: dict[str, str] = {}
        lanes: dict[str, LanePlace] = {}
        for part in filter(None, text.split(";")):
            name, _, event_id = part.partition("=")
            event_id, sign, lane = event_id.partition("@")
            if not (name and all(map(_is_id, _ids(unquote(event_id))))):
                raise ValidationError("Last-Event-ID", "the id of an event of this stream", text)
            if sign:
                ms, _, number = event_id.partition("-")
                lanes[unquote(name)] = (int(ms), int(number), unquote(lane))
            else:
                ids[unquote(name)] = unquote(event_id)
        return cls(ids, lanes)

    def __str__(self) -> str:
        return ";".join((*self._id_texts.values(), *self._lane_texts.values()))


def is_behind(event_id: str, other: str) -> bool:
    """Returns whether a position within a queue is behind another, so that there are events between them."""
    ours, theirs = _ids(event_id), _ids(other)
    if len(ours) != len(theirs):  # a layout with more partitions, which begin where the last event was
        ours, theirs = ours[:1], theirs[:1]
    return any(_key(mine) < _key(its) for mine, its in zip(ours, theirs, strict=True))


def _ids(event_id: str) -> list[str]:
    """Returns the ids in a position: one, and of a partitioned queue then one for each partition."""
    last, _, rest = event_id.partition("@")
    return [last, *rest.split(",")] if rest else [last]


def _key(event_id: str) -> tuple[int, int]:
    ms, _, number = event_id.partition("-")
    return int(ms), int(number or 0)


def _is_id(text: str) -> bool:
    ms, _, number = text.partition("-")
    return _digits(ms) and _digits(number)


def _id_text(name: str, event_id: str) -> str:
    return f"{quote(name, safe='')}={quote(event_id, safe='')}"


def _lane_text(name: str, place: LanePlace) -> str:
    ms, number, lane = place
    return f"{quote(name, safe='')}={ms}-{number}@{quote(lane, safe='')}"


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20
