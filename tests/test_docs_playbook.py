"""The failure playbook names metrics, alerts and tests that exist, and every failure has its four rows."""

from __future__ import annotations

import re

import pytest

from tests.documented import ROOT

PAGE = (ROOT / "docs" / "playbook.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
#: The failures that an operator must find here.
FAILURES = (
    "Worker crash",
    "Power loss",
    "Corrupt store",
    "Hung handler",
    "Overload",
    "Dependency deadlock",
    "Restart",
    "Memory, disk or descriptors exhausted",
    "External outage",
    "Malformed payload",
    "Handler crash",
    "Clock skew",
)


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_has_symptoms_reaction_action_and_loss(failure: str) -> None:
    rows = re.findall(r"^\| \*\*(\w+)\*\* \| (.+) \|$", SECTIONS[failure], re.MULTILINE)
    assert [row for row, _ in rows] == ["Symptoms", "Oxcart", "You", "Lost"]
    assert "Shown by `" in SECTIONS[failure]


def test_every_test_that_it_names_exists() -> None:
    source = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"(?:def|class) (\w+)", source))
    named = set(re.findall(r"`([Tt]est_?\w+)`", PAGE))
    assert named
    assert named <= known, sorted(named - known)


def test_every_metric_and_alert_that_it_names_exists() -> None:
    metrics = set(re.findall(r"`(bullmq_\w+)`", PAGE))
    documented = set(re.findall(r"`(bullmq_\w+)`", (ROOT / "deploy" / "README.md").read_text()))
    assert metrics
    assert metrics <= documented, sorted(metrics - documented)
    alerts = set(re.findall(r"alert: (\w+)", (ROOT / "deploy" / "alerts.yml").read_text()))
    named = set(re.findall(r"`(Oxcart[A-Z]\w+)`", PAGE))
    assert named
    assert named <= alerts, sorted(named - alerts)
