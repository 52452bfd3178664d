"""Reads the JSON records of any client of Bridge.

A malformed member reads as a default of the specification and never raises.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any
from urllib.parse import quote, unquote

import msgpack
import msgspec

from oxcart.broker.bridge.members import decoded, dump, members_of
from oxcart.model.backoff import Backoff
from oxcart.model.errors import ValidationError
from oxcart.model.target import Abilities, Mode, Target

#: The priority of a job without one.
NORMAL_PRIORITY = 5
#: The jitter of Bridge's ``jitter: true``.
JITTER = 0.25
#: The longest wait between attempts for a record without one.
MAX_DELAY = 60_000
#: The lane of jobs with an unreadable target.
UNREADABLE = "!"

#: The mode of a target without one, as in the original client and its script.
DEFAULT_MODE: Mode = "any"

#: No number of a record is further from 0: scripts read numbers up to it exactly.
MOST = 2**53 - 1

#: The position in the facts of an unreadable record: scripts leave it as it is.
WHOLE = -3

#: The beginning of lanes whose jobs another worker must try.
AWAY = "-"

#: The beginning of our records, before the number of attempts.
FRONT = b'{"attempts":'

#: The bytes that ``lua/parts/counting.lua`` requires before the number; and a number that it can count up.
_COUNTED = re.compile(rb'"attempts"\s*:\s*\Z')
_WHOLE = re.compile(rb"\d{1,15}(?![\d.eE])")
_ATTEMPTS = re.compile(rb'"attempts"\s*:\s*(\d+)')
_SPACE = re.compile(r"[ \t\n\r]*")
_json = msgspec.json.Encoder()
_scan = json.JSONDecoder()


def pack(value: Any) -> bytes:
    """Returns a value as scripts read it: their MessagePack has text, but no bytes."""
    packed: bytes
    try:
        # An id of another client that is no text goes back unchanged.
        packed = msgpack.packb(value, use_bin_type=False, unicode_errors="surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair, from JSON
        packed = msgpack.packb(value, use_bin_type=False, unicode_errors="surrogatepass")
    return packed


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """The facts of a job that a claim needs.

    Attributes:
        type: Its type.
        lane: Its target, as lanes are named; empty for none.
        priority: From 1 to 10, higher runs sooner.
        max_concurrent: At most so many of its type at once; 0 for no limit.
        max_per_minute: At most so many of its type in a minute; 0 for no limit.
        position: The offset of the number of attempts in its record; -1 if there is none,
            `WHOLE` if the record is unreadable.
    """

    type: str
    lane: str
    priority: int
    max_concurrent: int
    max_per_minute: int
    position: int

    def packed(self) -> bytes:
        """Returns them as the server stores them."""
        return pack(
            (
                self.type,
                self.lane,
                self.priority,
                self.max_concurrent,
                self.max_per_minute,
                self.position,
            )
        )


def unreadable(job_type: str) -> Facts:
    """Returns facts of an unreadable record, for a worker of this type to quarantine."""
    return Facts(job_type, "", NORMAL_PRIORITY, 0, 0, WHOLE)


def added_fields(name: str, corr: Any = None, tags: Any = None, created: int = 0) -> bytes:
    """Returns the fields of the event of a new or replayed job besides its id, as scripts read them.

    Args:
        name: The name of its handler.
        corr: Its correlation id.
        tags: Its tags.
        created: When it was added, in ms; needed unless that is the time of the event.
    """
    fields: list[str | int | bytes] = ["name", name]
    if isinstance(corr, str):
        fields += ("corr", corr)
    if tags:
        fields += ("tags", dump(tags))
    if 0 < created < 2**53:
        fields += ("created", created)
    return pack(fields)


class Record(msgspec.Struct, frozen=True):
    """A decoded record of a job.

    Attributes:
        payload: The payload as JSON.
        runs: How often it was started.
        attempts: How many attempts it has.
        ox: The members that our producer added.
    """

    type: str
    payload: bytes
    runs: int
    attempts: int
    backoff: Backoff
    skip_on: tuple[str, ...]
    reroute_on: tuple[str, ...]
    priority: int
    lane: str
    max_concurrent: int
    max_per_minute: int
    depends_on: tuple[str, ...]
    metadata: dict[str, Any]
    created_at: int
    delay: int
    schedule: dict[str, Any]
    ox: dict[str, Any]
    position: int

    def facts(self, finder: str = "") -> Facts:
        """Returns the facts that a claim needs.

        Args:
            finder: The type of the worker that found it. A record without a type goes to that worker,
                which quarantines it.
        """
        if not self.type and finder:
            return unreadable(finder)
        return Facts(
            self.type, self.lane, self.priority, self.max_concurrent, self.max_per_minute, self.position
        )

    @property
    def name(self) -> str:
        """The name of its handler: the type, unless our producer set another."""
        name = self.ox.get("name")
        return name if isinstance(name, str) and name else self.type


def read_record(raw: bytes) -> Record:
    """Reads a record of any client; a missing or malformed member is a default of the specification."""
    parts = members_of(raw)

    def part(name: str) -> Any:
        return decoded(parts[name]) if name in parts else None

    members = ("retry", "schedule", "ox", "metadata", "rateLimit")
    retry, schedule, ox, metadata, rate = (read_object(part(name)) for name in members)
    exact = ox.get("backoff")
    job_type = part("type")
    priority = read_number(part("priority"), NORMAL_PRIORITY)
    depends = part("dependsOn")
    created = read_number(part("createdAt"), 0)
    position = attempts_at(raw) if parts else -1
    delay = read_number(schedule.get("delay"), 0)
    if not delay and "runAt" in schedule:
        delay = max(0, read_number(schedule.get("runAt"), 0) - created)
    return Record(
        type=job_type if isinstance(job_type, str) else "",
        payload=bytes(parts.get("payload", b"{}")),
        runs=_runs(raw, position, part("attempts")),
        attempts=max(1, read_number(retry.get("attempts"), 3)),
        backoff=_exact_backoff(exact) or read_backoff(retry.get("backoff")),
        skip_on=_words(retry.get("skipOn")),
        reroute_on=_words(retry.get("rerouteOn")),
        priority=min(max(priority, 1), 10),
        lane=_lane(part("target")),
        max_concurrent=max(0, read_number(rate.get("maxConcurrent"), 0)),
        max_per_minute=max(0, read_number(rate.get("maxPerMinute"), 0)),
        depends_on=_words(depends),
        metadata=metadata,
        created_at=created,
        delay=delay,
        schedule=schedule,
        ox=ox,
        position=position,
    )


class _Brief(msgspec.Struct):
    """The members of a record that a claim needs, if all of them are well-formed."""

    type: str
    target: dict[str, Any] = {}
    priority: int = NORMAL_PRIORITY
    rate: dict[str, int] | None = msgspec.field(default=None, name="rateLimit")
    depends: list[str] = msgspec.field(default_factory=list, name="dependsOn")
    created: int = msgspec.field(default=0, name="createdAt")
    runs: int = msgspec.field(default=0, name="attempts")
    metadata: dict[str, Any] = {}


class _Counted(msgspec.Struct):
    """The number of attempts alone."""

    attempts: Any = None


_brief = msgspec.json.Decoder(_Brief)
_counted = msgspec.json.Decoder(_Counted)


def read_facts(raw: bytes) -> tuple[Facts, tuple[str, ...], bytes]:
    """Returns the facts of a record, its dependencies, and the fields of its event as a new job.

    Much faster than `read_record`. The fields are empty for a job that was started before: it is not new.
    """
    try:
        brief = _brief.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        record = read_record(raw)
        event = added_fields(record.type, None, record.metadata, record.created_at)
        return record.facts(), record.depends_on, b"" if record.runs else event
    rate = brief.rate or {}
    facts = Facts(
        brief.type,
        _lane(brief.target),
        min(max(brief.priority, 1), 10),
        max(0, read_number(rate.get("maxConcurrent"), 0)),
        max(0, read_number(rate.get("maxPerMinute"), 0)),
        attempts_at(raw),
    )
    event = b"" if brief.runs else added_fields(brief.type, None, brief.metadata, brief.created)
    return facts, tuple(brief.depends), event


def attempts_at(raw: bytes) -> int:
    """Returns the offset of the number of attempts in a record; -1 if it has none.

    Another value there (nothing, a text, a fraction, a name written with escapes) is no number that a script
    could count up. Then the number goes to the front of the record, and that one counts.
    """
    at = _find_attempts(raw)
    return at if at >= 0 and _COUNTED.search(raw[:at][-41:]) and _WHOLE.match(raw, at) else -1


def _find_attempts(raw: bytes) -> int:
    if raw.startswith(FRONT) and raw[len(FRONT) : len(FRONT) + 1].isdigit():
        return len(FRONT)
    # There may be several, but only one is the record's own: changing it changes the decoded record.
    for found in reversed(list(_ATTEMPTS.finditer(raw))):
        start, end = found.span(1)
        try:
            if _counted.decode(raw[:start] + b"98765432109" + raw[end:]).attempts == 98765432109:
                return start
        except (msgspec.MsgspecError, UnicodeError):
            return _search(raw)
        except RecursionError:
            return -1
    return -1 if b"\\u" not in raw else _search(raw)


def _search(raw: bytes) -> int:
    """Does the same by reading the record from its beginning: for names that are written with escapes."""
    try:
        text = raw.decode()
        at = _after_space(text, text.index("{") + 1)
        found = -1
        while text[at] == '"':
            key, at = scanstring(text, at + 1)
            at = _after_space(text, _after_space(text, at) + 1)
            if key == "attempts":
                found = len(text[:at].encode())
            _, at = _scan.raw_decode(text, at)
            at = _after_space(text, at)
            if text[at] != ",":
                break
            at = _after_space(text, at + 1)
    except (UnicodeDecodeError, ValueError, IndexError, RecursionError):
        return -1
    return found if raw[found : found + 1].isdigit() else -1


def read_backoff(wire: Any) -> Backoff:
    """Returns a retry policy of the specification: by default exponential from 2 s up to a minute."""
    given = read_object(wire)
    kind: Any = given.get("type")
    if kind not in ("fixed", "linear", "exponential"):
        kind = "exponential"
    return Backoff(
        type=kind,
        delay=max(0, read_number(given.get("delay"), 2000)),
        cap=max(0, read_number(given.get("maxDelay"), MAX_DELAY)),
        jitter=JITTER if given.get("jitter") is True else 0.0,
    )


def away_from(lane: str, server: str, until_ms: int) -> str:
    """Returns the lane of a job that another worker must try; after ``until_ms`` any worker may."""
    return f"{AWAY}{until_ms}:{quote(server, safe='')} {target_of(lane)}"


def target_of(lane: str) -> str:
    """Returns the target that a lane's name contains, without the worker that must not try its jobs."""
    return lane.partition(" ")[2] if lane.startswith(AWAY) else lane


def matches(lane: str, abilities: Abilities, now_ms: int = 0) -> bool:
    """Returns whether a worker may run the jobs of a lane."""
    if lane.startswith(AWAY):
        whom, _, lane = lane[len(AWAY) :].partition(" ")
        until, _, server = whom.partition(":")
        if unquote(server) == abilities.server and until.isdigit() and now_ms < int(until):
            return False
    if not lane:
        return True
    try:
        return Target.parse(lane).matches(abilities)
    except ValidationError:
        return False


def value_of(result: bytes) -> bytes | None:
    """Returns the value in a result, as JSON; None if the job failed."""
    parts = members_of(result)
    return bytes(parts.get("data", b"null")) if bytes(parts.get("success", b"")) == b"true" else None


def ended_at(result: bytes) -> int:
    """Returns when a job ended, in ms, from its result; 0 if that is unknown."""
    return read_number(read_object(decoded(result)).get("completedAt"), 0)


#: The wire state of each status, in the words that both protocols share.
PLACES = {
    "waiting": "waiting",
    "active": "active",
    "delayed": "delayed",
    "completed": "completed",
    "dead": "failed",
    "failed": "failed",
    "cron": "delayed",
}


#: The statuses of jobs that have ended, and of jobs that will run.
OVER = frozenset({"completed", "dead", "failed"})
LIVE = frozenset({"waiting", "active", "delayed"})


def _exact_backoff(given: Any) -> Backoff | None:
    if not isinstance(given, dict):
        return None
    try:
        return Backoff.from_field(dump(given))
    except ValidationError:
        return None


def _lane(target: Any) -> str:
    if not isinstance(target, dict) or not target:
        return ""
    asked = {name: target[name] for name in ("server", "stack", "capabilities", "region") if target.get(name)}
    if not asked:
        return ""
    try:
        # A server alone decides, so there is one lane for it, whatever the mode.
        mode = target.get("mode") or ("all" if "server" in asked else DEFAULT_MODE)
        return str(Target(**asked, mode=mode))
    except ValidationError:
        return UNREADABLE


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def read_object(value: Any) -> dict[str, Any]:
    """Returns an object of JSON; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def _runs(raw: bytes, position: int, decoded: Any) -> int:
    """Returns how often a job was started: the number that our scripts count, even if another follows it."""
    whole = _WHOLE.match(raw, position) if position >= 0 else None
    return int(whole[0]) if whole else max(0, read_number(decoded, 0))


def _words(value: Any) -> tuple[str, ...]:
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()


def read_number(value: Any, default: int) -> int:
    """Returns a number of JSON as a whole one within `MOST`; the default for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    try:
        return min(max(int(value), -MOST), MOST)
    except (ValueError, OverflowError):
        return default
