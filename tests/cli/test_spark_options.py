"""Options of Spark on the command line: a wrong one is one line, before Spark or the server is asked."""

from __future__ import annotations

import pytest

from oxcart.cli.exits import USAGE, CommandError
from oxcart.cli.spark_options import SparkChoice
from tests.cli.conftest import Commands


def test_settings_and_memory_are_read() -> None:
    choice = SparkChoice.read(None, None, ["spark.sql.shuffle.partitions=64", "spark.x=a=b"], "4G")
    assert choice.settings == {
        "spark.sql.shuffle.partitions": "64",
        "spark.x": "a=b",
        "spark.driver.memory": "4g",
    }
    assert choice.is_local


@pytest.mark.parametrize(
    ("master", "remote", "conf", "memory", "message"),
    [
        ("local[2]", "sc://x", [], None, "exclude each other"),
        (
            None,
            None,
            ["spark.x"],
            None,
            "--conf must be KEY=VALUE with a key that begins with spark., got 'spark.x'",
        ),
        (None, None, ["x=1"], None, "got 'x=1'"),
        (None, None, ["spark.master=local"], None, "--conf must not set spark.master: use --master"),
        (None, None, ["spark.driver.memory=1g"], None, "use --driver-memory"),
        (None, None, [], "4", "--driver-memory must be a size like 512m or 4g, got '4'"),
        (None, None, [], "0g", "must be a size"),
        (None, "sc://x", [], "4g", "--driver-memory must be left out with --remote"),
    ],
)
def test_a_wrong_option_is_refused(
    master: str | None, remote: str | None, conf: list[str], memory: str | None, message: str
) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        SparkChoice.read(master, remote, conf, memory)
    assert caught.value.code == USAGE


def test_run_refuses_a_wrong_setting_before_it_attaches() -> None:
    """No server is there: the option is judged first."""
    done = Commands("redis://127.0.0.1:1")("pipeline", "run", "--once", "--conf", "nonsense")
    assert done.code == USAGE
    assert "--conf must be KEY=VALUE" in done.err
