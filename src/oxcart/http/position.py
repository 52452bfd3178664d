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
            ms, _, number = event_id.partition("-")
            if not (name and _digits(ms) and _digits(number)):
                raise ValidationError("Last-Event-ID", "the id of an event of this stream", text)
            if sign:
                lanes[unquote(name)] = (int(ms), int(number), unquote(lane))
            else:
                ids[unquote(name)] = event_id
        return cls(ids, lanes)

    def __str__(self) -> str:
        return ";".join((*self._id_texts.values(), *self._lane_texts.values()))


def id_key(event_id: str) -> tuple[int, int]:
    """Returns an event's id as a key to compare it by."""
    ms, _, number = event_id.partition("-")
    return int(ms), int(number or 0)


def _id_text(name: str, event_id: str) -> str:
    return f"{quote(name, safe='')}={event_id}"


def _lane_text(name: str, place: LanePlace) -> str:
    ms, number, lane = place
    return f"{quote(name, safe='')}={ms}-{number}@{quote(lane, safe='')}"


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20
