"""``objectives.toml``: what it declares, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from oxcart.model.errors import ValidationError
from oxcart.spark.views.objectives import (
    FILE,
    Alerting,
    Objective,
    Objectives,
    load_objectives,
    parse_objectives,
)


def test_objectives_and_alerts_are_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(
        """
        [objectives.sent]
        queue = "mail"
        success = 0.999
        [objectives.prompt]
        queue = "mail"
        name = "welcome"
        wait = "1.5s"
        share = 0.9
        [alerts]
        queue = "ops"
        url = "https://example.com/alerts"
        burn = [10, 3]
        anomalies = false
        allow = ["10.1.0.0/16"]
        """
    )
    assert load_objectives(tmp_path) == Objectives(
        (
            Objective("sent", "mail", None, "success", None, 0.999),
            Objective("prompt", "mail", "welcome", "wait", 1500, 0.9),
        ),
        Alerting("ops", "https://example.com/alerts", (10.0, 3.0), False, ("10.1.0.0/16",)),
    )


def test_without_a_file_nothing_is_declared(tmp_path: Path) -> None:
    assert load_objectives(tmp_path) == Objectives()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[objectives", "objectives.toml: "),
        ("[targets.x]", "objectives.toml must be made of objectives, alerts, got 'targets'"),
        ("objectives = 1", "objectives must be a table, got 1"),
        ("[objectives.x]\nsuccess = 0.9", "objectives.x.queue must be a text"),
        ('[objectives.x]\nqueue = "q"', "objectives.x must be with one of success, wait and run"),
        ('[objectives.x]\nqueue = "q"\nsuccess = 0.9\nwait = "1s"', "got 'success, wait'"),
        ('[objectives.x]\nqueue = "q"\nsuccess = 1', "between 0 and 1, for example 0.999, got 1"),
        ('[objectives.x]\nqueue = "q"\nsuccess = true', "between 0 and 1, for example 0.999, got True"),
        ('[objectives.x]\nqueue = "q"\nwait = "1s"', "objectives.x.share must be a number"),
        (
            '[objectives.x]\nqueue = "q"\nwait = "1250ms"\nshare = 0.9',
            "objectives.x.wait .*two digits.* got 1250",
        ),
        ('[objectives.x]\nqueue = "q"\nwait = "soon"\nshare = 0.9', "objectives.x.wait must be"),
        ('[objectives.x]\nqueue = "q"\nsuccess = 0.9\nshare = 0.9', "objectives.x.share must be absent"),
        ('[objectives.x]\nqueue = "q"\nsucess = 0.9', "objectives.x must be made of .* got 'sucess'"),
        ('[objectives."a b"]\nqueue = "q"\nsuccess = 0.9', "objectives must be named by letters"),
        ('[objectives.x]\nqueue = "a\\\\b"\nsuccess = 0.9', "objectives.x.queue must be a text without"),
        ("[alerts]", "alerts must be with a queue or a url"),
        ('[alerts]\nqueue = "q"\nburn = 3', "alerts.burn must be two numbers above 0"),
        ('[alerts]\nqueue = "q"\nanomalies = 1', "alerts.anomalies must be true or false"),
        ('[alerts]\nqueue = "q"\nallow = "10.1.0.0/16"', "alerts.allow must be a list of networks"),
        ('[alerts]\nurl = "ftp://x"', "alerts.url must be an address"),
    ],
)
def test_a_wrong_field_is_named(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        parse_objectives(text)
