"""Alerts: one per episode of a burning objective or of an anomaly.

`Alerts.check` compares the newest rows of the lake with what it noted before. A condition that begins to hold
begins an episode, which is reported once to every destination: as a job, as a signed webhook, or both. An
episode is noted before it is reported, and forgotten when its condition has ended and every destination has
it. So a restart repeats nothing, and a destination that was away gets its report later. The job's id and the
webhook's delivery id name the episode: a report that was sent but not noted is recognised.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from oxcart.engine.webhooks.sender import Delivery, Webhooks
from oxcart.history.reader import LakeReader
from oxcart.model.errors import OxcartError, ValidationError
from oxcart.model.failure import PermanentError
from oxcart.spark.lake.versions import Lake
from oxcart.spark.views.anomalies import WEEKS
from oxcart.spark.views.dialect import DUCKDB
from oxcart.spark.views.objectives import Alerting, Objectives, load_objectives
from oxcart.spark.views.slo import newest

log = logging.getLogger("oxcart.spark.pipeline")

#: Events in the windows of a burn that are enough for an alert.
FEWEST_EVENTS = 10
#: An episode of a burn ends below this share of the bound at which it began, so that it does not flicker.
_EASED = 0.5
_HOUR_MS = 3_600_000
SECRET = "OXCART_ALERT_SECRET"

Add = Callable[[str, Mapping[str, Any], str], None]


class Episode(msgspec.Struct):
    """A condition that holds, or whose report is still to be sent.

    Attributes:
        since: When it was first seen, in ms.
        report: What is sent.
        sent: The destinations that have the report.
        over: Whether the condition has ended.
    """

    since: int
    report: dict[str, Any]
    sent: list[str] = msgspec.field(default_factory=list)
    over: bool = False


class _Noted(msgspec.Struct):
    """The file of episodes; `hour` is the last hour whose anomalies were looked at."""

    episodes: dict[str, Episode] = msgspec.field(default_factory=dict)
    hour: int = 0


class Alerts:
    """The alerts of a lake.

    Args:
        lake: The lake's folder.
        add: Adds a job: the name of the queue, the payload, and the job's id.
        name: The pipeline's name; each pipeline of a lake has its own episodes.
        webhooks: Signs and sends; by default with the secret of ``OXCART_ALERT_SECRET``.
    """

    def __init__(
        self, lake: str | Path, add: Add, *, name: str = "main", webhooks: Webhooks | None = None
    ) -> None:
        self._lake = Lake(lake)
        self._add = add
        self._path = Path(lake) / "_alerts" / f"{name}.json"
        self._webhooks = webhooks

    def check(self) -> list[str]:
        """Evaluates the newest rows and reports new episodes; returns the keys of those that were reported.

        Errors are logged: they must not end the pipeline, and the next check tries again.
        """
        try:
            declared = load_objectives(self._lake.root)
            return [] if declared.alerting is None else self._check(declared, declared.alerting)
        except (OxcartError, OSError) as error:
            log.error("alerts could not be evaluated, the next build tries again: %s", error)
        except Exception:
            log.exception("alerts could not be evaluated, the next build tries again")
        return []

    def _check(self, declared: Objectives, alerting: Alerting) -> list[str]:
        noted = self._read()
        version = self._lake.head()
        days = sorted({file.day for file in version.of("queue_metrics")})
        if not days:
            return []
        found: dict[str, tuple[int, dict[str, Any]]] = {}
        looked = {"burn"}
        if declared.objectives:
            with LakeReader(self._lake, version, days=days[-2:]) as reader:
                found |= _burning(reader, alerting, noted.episodes)
        hour = _last_hour(self._lake, days)
        if alerting.anomalies and hour is not None and hour > noted.hour:
            day = datetime.fromtimestamp(hour / 1000, UTC).date()
            with LakeReader(self._lake, version, days=[*_weekdays(day), *days[-1:]]) as reader:
                found |= _odd(reader, hour)
            noted.hour = hour
            looked.add("anomaly")
        for key, episode in noted.episodes.items():
            if key not in found and episode.report["alert"] in looked:
                episode.over = True
        for key, (since, report) in found.items():
            known = noted.episodes.get(key)
            if known is None or known.over:
                at = datetime.fromtimestamp(since / 1000, UTC).isoformat(timespec="seconds")
                noted.episodes[key] = Episode(since, {**report, "since": at.replace("+00:00", "Z")})
        self._write(noted)
        done = [key for key, episode in noted.episodes.items() if self._report(key, episode, alerting)]
        wanted = _destinations(alerting)
        noted.episodes = {
            key: episode
            for key, episode in noted.episodes.items()
            if not (episode.over and set(wanted) <= set(episode.sent))
        }
        self._write(noted)
        return done

    def _report(self, key: str, episode: Episode, alerting: Alerting) -> bool:
        """Sends the report to destinations that lack it; returns whether it was sent to one of them."""
        name = hashlib.sha256(f"{key} {episode.since}".encode()).hexdigest()[:24]
        sent = False
        for kind in _destinations(alerting):
            if kind in episode.sent:
                continue
            try:
                if kind == "queue":
                    self._add(str(alerting.queue), episode.report, f"alert-{name}")
                else:
                    delivery = Delivery(url=str(alerting.url), delivery_id=name, body=episode.report)
                    self._post(delivery, alerting.allow)
            except PermanentError as error:
                log.error("the receiver %s refused the alert %s: %s", alerting.url, key, error)
            except (OxcartError, OSError) as error:
                log.error(
                    "could not send the alert %s to the %s, the next build tries again: %s", key, kind, error
                )
                continue
            else:
                log.warning("alert: %s", episode.report["text"])
                sent = True
            episode.sent.append(kind)
        return sent

    def _post(self, delivery: Delivery, allow: Sequence[str]) -> None:
        webhooks = self._webhooks
        if webhooks is None:
            secret = os.environ.get(SECRET, "")
            if len(secret) < 16:
                raise ValidationError(
                    SECRET, "a secret of at least 16 characters, which signs webhooks", None
                )
            webhooks = Webhooks(secret, allow=allow)
        asyncio.run(webhooks.deliver(delivery))

    def _read(self) -> _Noted:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Noted)
        except FileNotFoundError:
            return _Noted()
        except msgspec.MsgspecError as error:
            log.error(
                "%s cannot be read, so alerts that were sent before may come again: %s", self._path, error
            )
            return _Noted()

    def _write(self, noted: _Noted) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".new")
        beside.write_bytes(msgspec.json.encode(noted))
        os.replace(beside, self._path)


def _destinations(alerting: Alerting) -> list[str]:
    given = {"queue": alerting.queue, "url": alerting.url}
    return [kind for kind, value in given.items() if value is not None]


def _burning(
    reader: LakeReader, alerting: Alerting, open_: Mapping[str, Episode]
) -> dict[str, tuple[int, dict[str, Any]]]:
    found = {}
    text = f"SELECT *, {DUCKDB.ms('until_ms')} AS now_ms FROM slo WHERE hours_ago = 0"
    for row in reader.sql(text).dicts():
        key = f"burn:{row['objective']}"
        known = open_.get(key)
        ease = 1.0 if known is None or known.over else _EASED
        hot = [
            (window, row[f"burn_{window}"])
            for window, bound in zip(("1h", "6h"), alerting.burn, strict=True)
            if row[f"total_{window}"] >= FEWEST_EVENTS and row[f"burn_{window}"] >= bound * ease
        ]
        if not hot:
            continue
        window, burn = hot[0]
        what = f"{row['queue']}/{row['name']}" if row["name"] else row["queue"]
        said = (
            f"{row['objective']} of {what} spends its error budget {burn:.1f} times too fast: "
            f"{row[f'bad_{window}']} of {row[f'total_{window}']} are bad in {window}"
        )
        facts = {
            name: row[name] for name in ("objective", "queue", "name", "kind", "target", "burn_1h", "burn_6h")
        }
        found[key] = (row["now_ms"], {"alert": "burn", "text": said, **facts})
    return found


def _odd(reader: LakeReader, hour: int) -> dict[str, tuple[int, dict[str, Any]]]:
    found = {}
    text = f"SELECT * FROM anomalies WHERE name = '*' AND {DUCKDB.ms('start_ms')} = $hour"
    for row in reader.sql(text, {"hour": hour}).dicts():
        place = f"{row['queue']}@{row['lane']}" if row["lane"] else row["queue"]
        said = (
            f"{row['measure']} of {place} is {row['value']:.4g} in an hour, expected {row['expected']:.4g} "
            f"(score {row['score']:.1f} over {row['weeks']} weeks)"
        )
        facts = {
            name: row[name] for name in ("queue", "lane", "measure", "value", "expected", "score", "weeks")
        }
        found[f"anomaly:{place}:{row['measure']}"] = (hour, {"alert": "anomaly", "text": said, **facts})
    return found


def _last_hour(lake: Lake, days: list[str]) -> int | None:
    """The start of the newest hour that is over."""
    with LakeReader(lake, days=days[-1:]) as reader:
        (now,) = next(iter(reader.sql(newest(DUCKDB))))
    return None if now is None else now - now % _HOUR_MS - _HOUR_MS


def _weekdays(day: date) -> list[str]:
    return [(day - timedelta(weeks=weeks)).isoformat() for weeks in range(WEEKS + 1)]
