"""The Grafana dashboard: valid panels that use every metric, and only metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from oxcart.broker.port.results import NamespaceStats
from oxcart.observe import bridge
from oxcart.observe.metrics import Metrics
from oxcart.spark.lag import LagMetrics
from tests.promtool import promtool

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "oxcart.json"

_SUFFIX = re.compile(r"_(bucket|sum|count)$")


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def test_it_uses_every_metric_and_no_other() -> None:
    stats = NamespaceStats(1, 1, 1, 1, 1, {}, {}, 1, 1)
    lag = LagMetrics(list).collect()
    families = [*Metrics().registry.collect(), *bridge.collect({"ns": stats}), *lag]
    exposed = {one.name + ("_total" if one.type == "counter" else "") for one in families}
    used = {name for query in queries() for name in re.findall(r"\b(?:bullmq|bridge)_\w+", query)}
    assert {_SUFFIX.sub("", name) for name in used} == exposed


def test_histograms_are_read_by_their_buckets() -> None:
    histograms = {one.name for one in Metrics().registry.collect() if one.type == "histogram"}
    for query in queries():
        for name in re.findall(r"\b(?:bullmq|bridge)_\w+", query):
            if _SUFFIX.sub("", name) in histograms:
                assert _SUFFIX.search(name), query


def test_panels_have_ids_places_and_a_data_source() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["description"]
            assert panel["datasource"]["uid"] == "${datasource}"
            assert all(target["legendFormat"] for target in panel["targets"])


def test_variables_are_declared() -> None:
    declared = {one["name"] for one in dashboard()["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(queries()))) - {"__rate_interval"}
    assert used <= declared == {"datasource", "queue", "name"}


@pytest.mark.slow
def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    import subprocess

    program = promtool()
    if program is None:
        pytest.skip("promtool is not installed, and Debian's package cannot be fetched")
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$__rate_interval", "5m", query)}
        for number, query in enumerate(queries())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML
    done = subprocess.run([program, "check", "rules", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
