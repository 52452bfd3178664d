"""Options that commands of the lake and of Spark take."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oxcart.cli.exits import FAILED, USAGE, CommandError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LakeOption = Annotated[Path, typer.Option("--lake", help="The folder of the tables.", envvar="OXCART_LAKE")]
MasterOption = Annotated[
    str | None, typer.Option("--master", help="A Spark cluster, or local[n].", show_default="this machine")
]
RemoteOption = Annotated[str | None, typer.Option("--remote", help="A Spark Connect server, sc://host:port.")]
ConfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="KEY=VALUE", help="A setting of Spark; may be given again.", show_default=False
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--driver-memory",
        metavar="SIZE",
        help="Memory of Spark's driver: 512m, 4g.",
        show_default="a quarter of this machine's",
    ),
]
#: Settings that an option has, and that option.
_OPTIONS = {"spark.master": "--master", "spark.remote": "--remote", "spark.driver.memory": "--driver-memory"}
_SIZE = re.compile(r"[1-9][0-9]{0,8}[kmgt]")
#: The lake of a command that names none.
LAKE = Path("lake")


@dataclass(frozen=True)
class SparkChoice:
    """The Spark that a command runs on.

    Attributes:
        master: The cluster, or ``local[n]``; None for this machine.
        remote: A Spark Connect server instead.
        settings: Settings of Spark that the user gives.
    """

    master: str | None = None
    remote: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(
        cls, master: str | None, remote: str | None, conf: Sequence[str] | None, memory: str | None
    ) -> SparkChoice:
        """Reads the options of a command.

        Raises:
            CommandError: An option is malformed, or does not go with another one.
        """
        if master and remote:
            raise CommandError(f"--master {master} and --remote {remote} exclude each other", USAGE)
        settings = {}
        for text in conf or ():
            name, equals, value = text.partition("=")
            if not equals or not re.fullmatch(r"spark\.[\w.-]+", name):
                raise CommandError(
                    f"--conf must be KEY=VALUE with a key that begins with spark., got {text!r}", USAGE
                )
            if name in _OPTIONS:
                raise CommandError(f"--conf must not set {name}: use {_OPTIONS[name]}", USAGE)
            settings[name] = value
        if memory is not None:
            if remote:
                raise CommandError(
                    "--driver-memory must be left out with --remote, whose driver runs already", USAGE
                )
            if not _SIZE.fullmatch(memory.lower()):
                raise CommandError(f"--driver-memory must be a size like 512m or 4g, got {memory!r}", USAGE)
            settings["spark.driver.memory"] = memory.lower()
        return cls(master, remote, settings)

    def __bool__(self) -> bool:
        return bool(self.master or self.remote or self.settings)

    @property
    def is_local(self) -> bool:
        """Whether executors share this machine's files."""
        return self.remote is None and (self.master is None or self.master.startswith("local"))

    def open(self) -> SparkSession:
        """Opens the session."""
        from oxcart.spark.session import open_session

        return open_session(self.master, remote=self.remote, settings=self.settings)


def check_lake(lake: Path) -> None:
    """Refuses a folder that is no lake, before Spark is started for nothing."""
    from oxcart.spark.lake.versions import Lake

    if not Lake(lake).head().number:
        raise CommandError(
            f"there are no tables in {lake} yet: fill them by 'oxcart pipeline run --once --lake {lake}', or "
            "name another folder by --lake",
            FAILED,
        )
