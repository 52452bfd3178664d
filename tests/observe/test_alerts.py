"""The alert rules: a file that Prometheus can load, about metrics that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from oxcart.observe.metrics import Metrics
from oxcart.spark.lag import LagMetrics
from tests.promtool import promtool

ALERTS = Path(__file__).parents[2] / "deploy" / "alerts.yml"

_SUFFIX = re.compile(r"_(bucket|sum|count)$")


def parse(text: str) -> list[dict[str, Any]]:
    """Read the part of YAML that the file uses: two lists, nested keys, quoted and block texts."""
    rules: list[dict[str, Any]] = []
    block: tuple[int, dict[str, Any], str] | None = None
    inner = ""
    for number, line in enumerate(text.splitlines(), 1):
        depth = len(line) - len(line.lstrip())
        if block is not None and (depth > block[0] or not line.strip()):
            block[1][block[2]] += line.strip() + " "
            continue
        block = None
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = re.fullmatch(r'( *)(- )?([a-z]+): ?(\||>-|"[^"]*"|[^"|>{\[]*)', line)
        assert found, f"line {number} is not of the known form: {line}"
        key, value = found[3], found[4].strip('"')
        if key == "alert":
            rules.append({})
        if not rules:
            assert key in ("groups", "name", "rules"), line
            continue
        if depth == 8:
            inner = "" if value else key
            place = rules[-1]
            if inner:
                rules[-1][key] = {}
                continue
        else:
            place = rules[-1][inner] if depth == 10 else rules[-1]
        if value in ("|", ">-"):
            place[key] = ""
            block = (depth, place, key)
        else:
            place[key] = value
    return rules


RULES = {rule["alert"]: rule for rule in parse(ALERTS.read_text())}


def test_the_two_thresholds_of_the_specification_are_there() -> None:
    assert {"OxcartHeartbeatsFail", "OxcartJobsStall"} <= set(RULES)
    assert RULES["OxcartHeartbeatsFail"]["expr"].rstrip().endswith("> 0.05")
    assert "> 0.10 * max by (queue)" in RULES["OxcartJobsStall"]["expr"]
    for name, rule in RULES.items():
        assert rule["for"] in ("2m", "5m")
        assert rule["labels"] == {"severity": "critical" if name == "OxcartNoWorker" else "warning"}
        assert set(rule["annotations"]) == {"summary", "description"}


def test_unroutable_jobs_raise_an_alert() -> None:
    assert RULES["OxcartJobsUnroutable"]["expr"].strip() == "max by (queue) (bullmq_unroutable_jobs) > 0"
    assert set(RULES) == {
        "OxcartBacklogOld",
        "OxcartDeadLetters",
        "OxcartGroupWaitsLong",
        "OxcartHeartbeatsFail",
        "OxcartJobsFail",
        "OxcartJobsStall",
        "OxcartJobsStartLate",
        "OxcartJobsUnroutable",
        "OxcartNoWorker",
        "OxcartPipelineLags",
        "OxcartPipelineLosesEvents",
        "OxcartWebhooksFail",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("check", "rules", ALERTS), ("test", "rules", Path(__file__).with_name("alerts_test.yml"))]
)
def test_prometheus_checks_and_tests_the_rules(command: tuple[str, ...]) -> None:
    program = promtool()
    if program is None:
        pytest.skip("promtool is not installed, and Debian's package cannot be fetched")
    done = subprocess.run([program, *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def exposed_metrics() -> set[str]:
    """The metrics of workers and of pipelines."""
    families = [*Metrics().registry.collect(), *LagMetrics(list).collect()]
    return {family.name + ("_total" if family.type == "counter" else "") for family in families}


def test_every_metric_that_a_rule_names_exists() -> None:
    exposed = exposed_metrics()
    for rule in RULES.values():
        texts = [rule["expr"], rule["annotations"]["description"]]
        named = {name for text in texts for name in re.findall(r"\bbullmq_\w+", text)}
        assert named
        assert {_SUFFIX.sub("", name) for name in named} <= exposed


def test_the_page_beside_the_rules_names_every_metric() -> None:
    documented = set(re.findall(r"`(bullmq_\w+)`", (ALERTS.parent / "README.md").read_text()))
    assert documented == exposed_metrics()


def test_brackets_are_balanced() -> None:
    for rule in RULES.values():
        for opened, closed in ("()", "[]", "{}"):
            assert rule["expr"].count(opened) == rule["expr"].count(closed)
