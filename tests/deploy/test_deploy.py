"""Images, compose file, units and manifests: linted, and of one mind about drains, ports and users."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from tools.rehearsal import containers

from oxcart.cli.app import app
from oxcart.cli.fleet import GRACE
from oxcart.cli.runner import SPARE
from oxcart.model.duration import parse_ms
from oxcart.observe.metrics import Metrics
from oxcart.spark.lag import LagMetrics
from tests.deploy.linters import lint
from tests.documented import ROOT

DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kubernetes" / "base"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
#: Kinds that Kubernetes itself does not know.
FOREIGN = {"Kustomization", "ScaledObject", "TriggerAuthentication"}
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def objects() -> dict[tuple[str, str], dict[str, Any]]:
    found = (one for file in sorted(BASE.glob("*.yaml")) for one in yaml.safe_load_all(file.read_text()))
    return {(one["kind"], one.get("metadata", {}).get("name", "")): one for one in found}


def pod(kind: str, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = objects()[kind, name]["spec"]["template"]["spec"]
    return spec


class TestLinters:
    def test_hadolint_finds_nothing_in_the_dockerfile(self) -> None:
        lint("hadolint", DEPLOY / "Dockerfile")

    def test_yamllint_finds_nothing(self) -> None:
        rules = "line-length: {max: 125}, document-start: disable, braces: {max-spaces-inside: 1}"
        lint("yamllint", "--strict", "-d", f"{{extends: default, rules: {{{rules}}}}}", DEPLOY)

    def test_manifests_fit_the_schemas_of_kubernetes(self, tmp_path: Path) -> None:
        for (kind, name), one in objects().items():
            if kind not in FOREIGN:
                (tmp_path / f"{kind}-{name}.yaml").write_text(yaml.safe_dump(one))
        shown = lint("kubernetes-validate", "--strict", *sorted(tmp_path.glob("*.yaml")))
        assert shown.count("passed") >= 10

    @pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
    def test_kustomize_renders_every_object_with_its_namespace_and_tag(self) -> None:
        command = ["kubectl", "kustomize", str(BASE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        rendered = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}
        assert set(rendered) == {named for named in objects() if named[0] != "Kustomization"}
        for (kind, _), one in rendered.items():
            assert one["metadata"].get("namespace", "oxcart") == "oxcart"
            if kind in ("Deployment", "StatefulSet"):
                (container,) = one["spec"]["template"]["spec"]["containers"]
                name, _, tag = container["image"].partition(":")
                assert (name in ("oxcart", "oxcart-pipeline"), bool(tag)) == (True, True)

    @pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
    @pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
    def test_systemd_accepts_a_unit_and_calls_it_safe(self, unit: Path, tmp_path: Path) -> None:
        # The program must exist for systemd; here it is ours.
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace("/opt/oxcart/venv/bin", str(Path(sys.executable).parent)))
        verified = subprocess.run(
            ["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False
        )
        assert (verified.returncode, verified.stderr) == (0, "")
        command = ["systemd-analyze", "security", "--offline=yes", str(copy)]
        judged = subprocess.run(command, capture_output=True, text=True, check=False)
        exposure = re.search(r"exposure level for \S+: ([\d.]+)", judged.stdout)
        assert exposure is not None, judged.stdout + judged.stderr
        assert float(exposure[1]) < 2.0


class TestDrain:
    """A worker ends 5 s after its shutdown timeout, its supervisor 10 s; every orchestrator waits longer."""

    def needed(self, words: list[str]) -> float:
        joined = " ".join(words)
        found = re.search(r"--shutdown-timeout[= ](\w+)", joined)
        assert found is not None, joined
        return parse_ms(found[1], "shutdown_timeout") / 1000 + max(SPARE, GRACE)

    def test_systemd_waits_for_the_shutdown_timeout(self) -> None:
        text = (DEPLOY / "systemd" / "oxcart-worker@.service").read_text()
        (command,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
        (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
        assert float(stop) > self.needed(command.split())
        assert "KillMode=mixed" in text

    def test_compose_waits_for_the_shutdown_timeout(self) -> None:
        worker = COMPOSE["services"]["worker"]
        assert parse_ms(worker["stop_grace_period"], "grace") / 1000 > self.needed(worker["command"])

    def test_kubernetes_waits_for_the_shutdown_timeout(self) -> None:
        spec = pod("Deployment", "worker")
        assert spec["terminationGracePeriodSeconds"] > self.needed(spec["containers"][0]["args"])
        api = pod("Deployment", "api")
        slept = re.search(
            r"sleep\((\d+)\)", api["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1]
        )
        assert slept is not None
        assert api["terminationGracePeriodSeconds"] > int(slept[1]) + 10

    def test_the_image_says_so_too(self) -> None:
        assert "docker stop --time 45" in (DEPLOY / "Dockerfile").read_text()


class TestCommands:
    """Every command line names options that exist."""

    @pytest.mark.parametrize(
        "words", [*(one.get("command", []) for one in COMPOSE["services"].values())], ids=str
    )
    def test_of_compose(self, words: list[str]) -> None:
        if words and words[0] in ("work", "serve", "pipeline"):
            assert unknown(words) == []

    @pytest.mark.parametrize(
        ("kind", "name"), [("Deployment", "worker"), ("Deployment", "api"), ("StatefulSet", "pipeline")]
    )
    def test_of_kubernetes(self, kind: str, name: str) -> None:
        assert unknown(pod(kind, name)["containers"][0]["args"]) == []

    @pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
    def test_of_systemd(self, unit: Path) -> None:
        (command,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
        assert unknown(command.split()[1:]) == []

    def test_of_the_environment_file(self) -> None:
        text = (DEPLOY / "systemd" / "worker.env.example").read_text()
        (options,) = re.findall(r"^OXCART_OPTIONS=(.*)$", text, re.MULTILINE)
        assert unknown(["work", *options.split()]) == []


def unknown(words: list[str]) -> list[str]:
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    known = {name for one in command.params for name in one.opts}
    given = [word.partition("=")[0] for word in rest if word.startswith("--")]
    return [word for word in given if word not in known]


class TestShape:
    def test_containers_run_without_rights(self) -> None:
        for kind, name in (("Deployment", "worker"), ("Deployment", "api"), ("StatefulSet", "pipeline")):
            spec = pod(kind, name)
            assert spec["securityContext"]["runAsNonRoot"] is True
            for container in spec["containers"]:
                context = container["securityContext"]
                assert context["readOnlyRootFilesystem"] is True
                assert context["capabilities"] == {"drop": ["ALL"]}
        for name, service in COMPOSE["services"].items():
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
            # Our image has a user of its own. An entrypoint that begins as root cannot change to another one.
            user = service.get("user", "10001:10001" if "build" in service else "root")
            assert re.fullmatch(r"[1-9]\d*:\d+", user), name
        stages = (DEPLOY / "Dockerfile").read_text().split("\nFROM ")
        assert all(
            "USER 10001:10001" in stage
            for stage in stages
            if " AS runtime" in stage or " AS pipeline" in stage
        )

    def test_probes_ask_what_a_worker_serves(self) -> None:
        container = pod("Deployment", "worker")["containers"][0]
        assert container["livenessProbe"]["httpGet"]["path"] == "/live"
        assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
        assert "--metrics-port=9100" in container["args"]
        assert container["ports"] == [{"name": "metrics", "containerPort": 9100}]

    def test_the_pipeline_serves_what_its_probes_ask(self) -> None:
        container = pod("StatefulSet", "pipeline")["containers"][0]
        for probe in ("startupProbe", "livenessProbe"):
            assert container[probe]["httpGet"] == {"path": "/live", "port": "metrics"}
        assert container["ports"] == [{"name": "metrics", "containerPort": 9200}]
        assert "--metrics-port=9200" in container["args"]
        image = (DEPLOY / "Dockerfile").read_text().split(" AS pipeline\n")[1]
        assert "OXCART_HEALTH=http://127.0.0.1:9200/live" in image
        assert 'CMD ["pipeline", "run", "--metrics-port=9200"]' in image
        unit = (DEPLOY / "systemd" / "oxcart-pipeline.service").read_text()
        assert "pipeline run --metrics-port 9200" in unit

    def test_a_stateful_set_has_its_service(self) -> None:
        for (kind, _), one in objects().items():
            if kind == "StatefulSet":
                service = objects()["Service", one["spec"]["serviceName"]]["spec"]
                assert service["clusterIP"] == "None"
                labels = one["spec"]["template"]["metadata"]["labels"]
                assert service["selector"].items() <= labels.items()

    def test_workers_scale_by_the_ages_of_the_backlog_and_by_the_list(self) -> None:
        scaled = objects()["ScaledObject", "worker"]["spec"]
        of_kind = {
            kind: [one["metadata"] for one in scaled["triggers"] if one["type"] == kind]
            for kind in ("prometheus", "redis")
        }
        asked = {re.findall(r"bullmq_\w+", one["query"])[0] for one in of_kind["prometheus"]}
        assert asked == {"bullmq_oldest_waiting_seconds", "bullmq_group_oldest_waiting_seconds"}
        assert asked <= SERVED["work"]
        (redis,) = of_kind["redis"]
        assert redis["listName"] == "bull:emails:wait"
        secret = re.findall(r"from-literal url=(\w+)://", (DEPLOY / "README.md").read_text())
        assert (secret, redis["enableTLS"]) == (["rediss"], "true")
        assert scaled["scaleTargetRef"]["name"] == "worker"
        assert "replicas" not in objects()["Deployment", "worker"]["spec"]

    def test_budgets_select_their_deployments(self) -> None:
        for name in ("worker", "api"):
            budget = objects()["PodDisruptionBudget", name]["spec"]
            labels = objects()["Deployment", name]["spec"]["template"]["metadata"]["labels"]
            assert budget["selector"]["matchLabels"].items() <= labels.items()

    def test_every_file_that_is_named_exists(self) -> None:
        named = objects()["Kustomization", ""]["resources"]
        assert {file.name for file in BASE.glob("*.yaml")} == {*named, "kustomization.yaml"}
        for service in COMPOSE["services"].values():
            for volume in service.get("volumes", ()):
                source = volume.split(":")[0]
                assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), volume
        kept = (DEPLOY / "Dockerfile.dockerignore").read_text()
        for copied in re.findall(r"^COPY (?!--from)(.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE):
            for source in copied.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}\n" in kept or (source.startswith("deploy/") and source.endswith(".lock"))

    @pytest.mark.parametrize("lock", sorted(DEPLOY.glob("*.lock")), ids=lambda path: path.name)
    def test_the_image_installs_the_releases_of_the_lock(self, lock: Path) -> None:
        pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)", lock.read_text(), re.MULTILINE))
        main = dict(
            re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
        )
        assert {name: main.get(name) for name in pins} == pins
        assert not re.search(r"://|--index", lock.read_text())


#: The metrics that the processes of a role serve.
SERVED = {
    "work": {one.name for one in Metrics().registry.collect()},
    "pipeline": {one.name for one in LagMetrics(list).collect()},
}


class TestAlertsHaveData:
    """Every metric of a rule is served by a process that Prometheus scrapes."""

    def needed(self) -> set[str]:
        named = set(re.findall(r"\bbullmq_\w+", (DEPLOY / "alerts.yml").read_text()))
        return {re.sub(r"_(total|bucket)$", "", name) for name in named}

    def served(self, commands: list[tuple[list[str], int]]) -> set[str]:
        found: set[str] = set()
        for words, port in commands:
            assert {f"--metrics-port={port}", "--metrics-host=0.0.0.0"} <= set(words), words
            found |= SERVED[words[0]]
        return found

    def test_in_compose(self) -> None:
        config = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
        targets = [one for job in config["scrape_configs"] for one in job["dns_sd_configs"]]
        services = COMPOSE["services"]
        commands = [
            (services[name]["command"], target["port"]) for target in targets for name in target["names"]
        ]
        assert self.needed() <= self.served(commands)
        for name in (name for target in targets for name in target["names"]):
            assert set(services[name]["networks"]) & set(services["prometheus"]["networks"]), name

    def test_in_kubernetes(self) -> None:
        policy = objects()["NetworkPolicy", "metrics"]["spec"]
        ((reached,), (allowed,)) = policy["podSelector"]["matchExpressions"], policy["ingress"]
        assert allowed["ports"] == [{"port": "metrics"}]
        commands = []
        for kind, name in (("Deployment", "worker"), ("StatefulSet", "pipeline")):
            template = objects()[kind, name]["spec"]["template"]
            (container,) = template["spec"]["containers"]
            port = {one["name"]: one["containerPort"] for one in container["ports"]}["metrics"]
            assert template["metadata"]["annotations"] == {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": str(port),
            }
            assert template["metadata"]["labels"][reached["key"]] in reached["values"]
            commands.append((container["args"], port))
        assert self.needed() <= self.served(commands)


def test_containers_are_rehearsed_with_the_rights_and_the_patience_of_compose() -> None:
    worker = containers.rights(COMPOSE["services"]["worker"])
    assert {"--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges:true"} <= set(worker)
    assert {"--tmpfs=/tmp", "--stop-timeout=45"} <= set(worker)
    assert "--stop-timeout=20" in containers.rights(COMPOSE["services"]["api"])
    assert "--user=999:1000" in containers.rights(COMPOSE["services"]["valkey"])


@pytest.mark.timeout(300)
def test_rolling_restart_under_load_loses_nothing() -> None:
    """`deploy/rehearse` replaces workers under load, by the commands of the units."""
    done = subprocess.run(
        [DEPLOY / "rehearse", "--jobs", "200", "--workers", "2", "--processes", "1"],
        env={"PYTHON": sys.executable, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost, twice, stalled, failed: 0, 0, 0, 0" in done.stdout
