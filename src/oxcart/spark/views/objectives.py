"""Service level objectives: declared in ``objectives.toml`` in the lake's folder.

A table per objective names a queue, perhaps a job name, and one promise: the share of jobs that succeed, or
the share of attempts that start (``wait``) or run (``run``) in less than a limit.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from oxcart.model.duration import parse_ms
from oxcart.model.errors import ValidationError

FILE = "objectives.toml"
#: Promises of an objective.
SUCCESS, WAIT, RUN = "success", "wait", "run"
#: The wait that workers are planned for in queues without an objective: 99 % start in less than 1 s.
DEFAULT_WITHIN, DEFAULT_TARGET = 1000, 0.99
_FIELDS = ("queue", "name", "success", "wait", "run", "share")
_ALERT_FIELDS = ("queue", "url", "allow", "burn", "anomalies")


class Objective(msgspec.Struct, frozen=True):
    """One promise.

    Attributes:
        objective: Its own name.
        queue: The queue, with all its lanes.
        name: The job name; None for all jobs of the queue.
        kind: ``success``, ``wait`` or ``run``.
        within_ms: The limit of a duration, of which at most two decimal digits are not 0; None for success.
        target: The share that keeps the promise, between 0 and 1.
    """

    objective: str
    queue: str
    name: str | None
    kind: str
    within_ms: int | None
    target: float


class Alerting(msgspec.Struct, frozen=True):
    """Where alerts go.

    Attributes:
        queue: The queue that gets a job per alert; None for none.
        url: The address that gets a request per alert; None for none.
        burn: The burn over 1 h and over 6 h from which an objective alerts.
        anomalies: Whether anomalies of whole queues alert.
        allow: Networks that `url` may be in although they are not public.
    """

    queue: str | None = None
    url: str | None = None
    burn: tuple[float, float] = (14.4, 6.0)
    anomalies: bool = True
    allow: tuple[str, ...] = ()


class Objectives(msgspec.Struct, frozen=True):
    """What a lake's ``objectives.toml`` declares."""

    objectives: tuple[Objective, ...] = ()
    alerting: Alerting | None = None


def load_objectives(root: str | Path) -> Objectives:
    """Reads the objectives of a lake; without a file there are none.

    Raises:
        ValidationError: The file cannot be read, or a field of it is wrong.
    """
    path = Path(root) / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Objectives()
    except (OSError, UnicodeDecodeError) as error:
        raise ValidationError(FILE, "a file that can be read", str(path), str(error)) from error
    return parse_objectives(text)


def parse_objectives(text: str) -> Objectives:
    """Reads objectives from TOML.

    Raises:
        ValidationError: It is no TOML, or a field is unknown, missing or out of its bounds.
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValidationError(FILE, "TOML", None, f"{FILE}: {error}") from error
    _known(found, ("objectives", "alerts"), FILE)
    declared = _table(found.get("objectives", {}), "objectives")
    alerts = found.get("alerts")
    return Objectives(
        tuple(_objective(name, _table(one, f"objectives.{name}")) for name, one in declared.items()),
        None if alerts is None else _alerting(_table(alerts, "alerts")),
    )


def _objective(name: str, given: Mapping[str, Any]) -> Objective:
    at = f"objectives.{name}"
    if not re.fullmatch(r"[\w.-]{1,100}", name):
        raise ValidationError("objectives", "named by letters, digits, '.', '_' and '-', at most 100", name)
    _known(given, _FIELDS, at)
    queue = _text(given.get("queue"), f"{at}.queue")
    job_name = None if given.get("name") is None else _text(given["name"], f"{at}.name")
    kinds = [kind for kind in (SUCCESS, WAIT, RUN) if kind in given]
    if len(kinds) != 1:
        raise ValidationError(at, "with one of success, wait and run", ", ".join(kinds) or None)
    kind = kinds[0]
    if kind == SUCCESS:
        if "share" in given:
            raise ValidationError(
                f"{at}.share", "absent beside success, which is the share itself", given["share"]
            )
        return Objective(name, queue, job_name, kind, None, _share(given[SUCCESS], f"{at}.success"))
    limit = parse_ms(given[kind], f"{at}.{kind}", minimum=1)
    if len(str(limit).rstrip("0")) > 2:
        # Durations are counted by buckets of two digits: another limit would lie inside of one.
        raise ValidationError(f"{at}.{kind}", "of at most two digits in ms, for example 1500 or 30000", limit)
    return Objective(name, queue, job_name, kind, limit, _share(given.get("share"), f"{at}.share"))


def _alerting(given: Mapping[str, Any]) -> Alerting:
    _known(given, _ALERT_FIELDS, "alerts")
    queue, url = given.get("queue"), given.get("url")
    if queue is None and url is None:
        raise ValidationError("alerts", "with a queue or a url", None)
    burn = given.get("burn", Alerting().burn)
    if not isinstance(burn, list | tuple) or len(burn) != 2 or not all(_is_positive(one) for one in burn):
        raise ValidationError("alerts.burn", "two numbers above 0, for 1 h and 6 h", burn)
    anomalies = given.get("anomalies", True)
    if not isinstance(anomalies, bool):
        raise ValidationError("alerts.anomalies", "true or false", anomalies)
    allow = given.get("allow", [])
    if not isinstance(allow, list) or not all(isinstance(one, str) for one in allow):
        raise ValidationError("alerts.allow", "a list of networks like 10.1.0.0/16", allow)
    if url is not None and not re.match(r"https?://\S+$", _text(url, "alerts.url")):
        raise ValidationError("alerts.url", "an address that begins with http:// or https://", url)
    return Alerting(
        None if queue is None else _text(queue, "alerts.queue"),
        url,
        (float(burn[0]), float(burn[1])),
        anomalies,
        tuple(allow),
    )


def _table(given: object, field: str) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise ValidationError(field, "a table", given)
    return given


def _known(given: Mapping[str, Any], known: Iterable[str], field: str) -> None:
    known = tuple(known)
    for name in given:
        if name not in known:
            raise ValidationError(field, f"made of {', '.join(known)}", name)


def _text(given: object, field: str) -> str:
    if not isinstance(given, str) or not given or "\\" in given:
        raise ValidationError(field, "a text without a backslash", given)
    return given


def _share(given: object, field: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < 1:
        raise ValidationError(field, "a number between 0 and 1, for example 0.999", given)
    return float(given)


def _is_positive(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and given > 0
