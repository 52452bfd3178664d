"""Alerts: one report per episode and destination, whatever happens in between."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")
pytest.importorskip("httpx")

from oxcart.errors import BrokerUnavailable
from oxcart.history.alerts import SECRET, Alerts
from oxcart.spark.lake.versions import Change, Lake
from oxcart.spark.views.objectives import FILE
from tests.history.histories import HOUR, MINUTE, Row, metric, timing, weeks
from tests.history.lakes import make_lake, write

OBJECTIVES = '[objectives.sent]\nqueue = "mail"\nsuccess = 0.99\n'
ALERTS = '[alerts]\nqueue = "ops"\n'


class Service:
    """A lake to which tests add what happens, and the jobs that alerts make."""

    def __init__(self, root: Path, text: str = OBJECTIVES + ALERTS) -> None:
        self.lake: Lake | None = None
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        (root / FILE).write_text(text, encoding="utf-8")
        self.jobs: dict[str, Mapping[str, Any]] = {}
        self.away = False

    def add(self, queue: str, report: Mapping[str, Any], job_id: str) -> None:
        assert queue == "ops"
        if self.away:
            raise BrokerUnavailable("the server is away")
        assert job_id not in self.jobs, "an alert was repeated"
        self.jobs[job_id] = report

    def happens(self, **tables: list[Row]) -> list[str]:
        """Adds rows to the tables; returns the alerts of a check by a new process."""
        if self.lake is None:
            self.lake = make_lake(self.root, **tables)
        else:
            files = [write(self.lake, table, rows) for table, rows in tables.items()]
            self.lake.publish(Change("build", add=files))
        return self.check()

    def check(self) -> list[str]:
        return Alerts(self.root, self.add).check()

    def minute(self, at: int, completed: int, failed: int) -> list[str]:
        return self.happens(
            timings=[timing(at, completed=completed, failed=failed)], queue_metrics=[metric(at)]
        )


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path / "lake")


def test_a_burn_alerts_once_per_episode(service: Service) -> None:
    assert service.minute(0, 100, 0) == []
    assert service.minute(MINUTE, 0, 30) == ["burn:sent"]
    assert service.minute(2 * MINUTE, 10, 30) == []
    (report,) = service.jobs.values()
    assert report["alert"] == "burn"
    assert report["burn_1h"] == pytest.approx(30 / 130 / 0.01)
    assert report["since"] == "2026-11-02T00:02:00Z"
    assert (
        report["text"] == "sent of mail spends its error budget 23.1 times too fast: 30 of 130 are bad in 1h"
    )
    # A day later it is well again, and then not: the second episode.
    assert service.minute(24 * HOUR, 1000, 0) == []
    assert service.minute(24 * HOUR + MINUTE, 0, 500) == ["burn:sent"]
    assert len(service.jobs) == 2


def test_an_episode_ends_below_half_of_its_bound(service: Service) -> None:
    """14.4 over 1 h or 6 over 6 h begin it; below 7.2 and 3 it is over."""
    assert service.minute(0, 80, 20) == ["burn:sent"]
    assert service.minute(MINUTE, 100, 0) == []  # 10
    assert service.minute(2 * MINUTE, 0, 20) == []  # 18
    assert service.minute(3 * MINUTE, 2000, 0) == []  # 1.8, and over
    assert service.minute(4 * MINUTE, 0, 200) == ["burn:sent"]


def test_few_events_do_not_alert(service: Service) -> None:
    assert service.minute(0, 0, 9) == []
    assert service.minute(MINUTE, 0, 1) == ["burn:sent"]


def test_a_destination_that_was_away_gets_the_alert_later(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.away = True
    with caplog.at_level(logging.ERROR, "oxcart.spark.pipeline"):
        assert service.minute(0, 0, 100) == []
    assert "could not send the alert burn:sent to the queue" in caplog.text
    assert service.minute(26 * HOUR, 1000, 0) == []  # the episode is over, its report is not sent
    service.away = False
    assert service.check() == ["burn:sent"]
    assert service.check() == []
    assert [report["since"] for report in service.jobs.values()] == ["2026-11-02T00:01:00Z"]


def test_an_anomaly_alerts_when_its_hour_is_over_and_once_while_it_lasts(service: Service) -> None:
    usual = [{"arrivals": 20}] * 6
    hours = [
        *weeks(usual)[:-1],
        *weeks(usual, HOUR)[:-1],
        *weeks(usual, 2 * HOUR)[:-1],
        *weeks(usual, 3 * HOUR)[:-1],
    ]
    past = [row for row in hours if row["start_ms"] < min(row["start_ms"] for row in hours[5::6])]
    assert service.happens(queue_metrics=[*past, metric(0, "hour", arrivals=900), metric(0)]) == []
    assert service.happens(queue_metrics=[metric(HOUR - MINUTE)]) == ["anomaly:mail:rate"]
    assert (
        service.happens(queue_metrics=[metric(HOUR, "hour", arrivals=900), metric(2 * HOUR - MINUTE)]) == []
    )
    assert (
        service.happens(queue_metrics=[metric(2 * HOUR, "hour", arrivals=20), metric(3 * HOUR - MINUTE)])
        == []
    )
    assert service.happens(queue_metrics=[metric(3 * HOUR, "hour", arrivals=900), metric(4 * HOUR)]) == [
        "anomaly:mail:rate"
    ]
    first, _ = service.jobs.values()
    assert (first["alert"], first["measure"], first["value"], first["expected"]) == (
        "anomaly",
        "rate",
        900,
        20,
    )


def test_without_alerts_nothing_is_evaluated_or_written(tmp_path: Path) -> None:
    quiet = Service(tmp_path / "lake", OBJECTIVES)
    assert quiet.minute(0, 0, 100) == []
    assert not (quiet.root / "_alerts").exists()


def test_wrong_objectives_are_logged_and_do_not_end_the_pipeline(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    (service.root / FILE).write_text("[alerts]\nurl = 1\n")
    with caplog.at_level(logging.ERROR, "oxcart.spark.pipeline"):
        assert service.minute(0, 0, 100) == []
    assert "alerts.url must be a text" in caplog.text


class Receiver(BaseHTTPRequestHandler):
    """Keeps what it receives, and answers with the next status."""

    got: ClassVar[list[tuple[dict[str, str], Any]]] = []
    statuses: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((dict(self.headers), json.loads(body)))
        self.send_response(self.statuses.pop(0) if self.statuses else 204)
        self.end_headers()

    def log_message(self, *given: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[tuple[str, type[Receiver]]]:
    Receiver.got, Receiver.statuses = [], []
    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/alerts", Receiver
        server.shutdown()
        thread.join()


def test_a_webhook_is_signed_and_repeated_with_the_same_id_until_it_is_received(
    tmp_path: Path, receiver: tuple[str, type[Receiver]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, seen = receiver
    monkeypatch.setenv(SECRET, "a secret of enough bytes")
    seen.statuses = [503]
    alerts = f'[alerts]\nqueue = "ops"\nurl = "{url}"\nallow = ["127.0.0.0/8"]\n'
    service = Service(tmp_path / "lake", OBJECTIVES + alerts)
    assert service.minute(0, 0, 100) == ["burn:sent"]
    assert service.check() == ["burn:sent"]
    assert service.check() == []
    assert len(service.jobs) == 1
    (first, body), (second, _) = seen.got
    assert body["objective"] == "sent"
    assert first["Oxcart-Delivery"] == second["Oxcart-Delivery"]
    assert first["Oxcart-Signature"].startswith("v1=")


def test_a_receiver_that_refuses_is_not_asked_again(
    tmp_path: Path, receiver: tuple[str, type[Receiver]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, seen = receiver
    monkeypatch.setenv(SECRET, "a secret of enough bytes")
    seen.statuses = [410]
    service = Service(tmp_path / "lake", f'{OBJECTIVES}[alerts]\nurl = "{url}"\nallow = ["127.0.0.0/8"]\n')
    assert service.minute(0, 0, 100) == []
    assert service.check() == []
    assert len(seen.got) == 1


def test_a_webhook_without_a_secret_is_an_error_that_names_the_variable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    service = Service(tmp_path / "lake", OBJECTIVES + '[alerts]\nurl = "https://example.com/x"\n')
    with caplog.at_level(logging.ERROR, "oxcart.spark.pipeline"):
        assert service.minute(0, 0, 100) == []
    assert "OXCART_ALERT_SECRET must be a secret of at least 16 characters" in caplog.text
