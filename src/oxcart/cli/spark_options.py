"""Options that commands of the lake and of Spark take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oxcart.cli.exits import FAILED, CommandError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LakeOption = Annotated[Path, typer.Option("--lake", help="The folder of the tables.", envvar="OXCART_LAKE")]
MasterOption = Annotated[
    str | None, typer.Option("--master", help="A Spark cluster, or local[n].", show_default="this machine")
]
RemoteOption = Annotated[str | None, typer.Option("--remote", help="A Spark Connect server, sc://host:port.")]
#: The lake of a command that names none.
LAKE = Path("lake")


@dataclass(frozen=True)
class SparkChoice:
    """The Spark that a command runs on.

    Attributes:
        master: The cluster, or ``local[n]``; None for this machine.
        remote: A Spark Connect server instead.
    """

    master: str | None = None
    remote: str | None = None

    def __bool__(self) -> bool:
        return bool(self.master or self.remote)

    @property
    def is_local(self) -> bool:
        """Whether executors share this machine's files."""
        return self.remote is None and (self.master is None or self.master.startswith("local"))

    def open(self) -> SparkSession:
        """Opens the session."""
        from oxcart.spark.session import open_session

        return open_session(self.master, remote=self.remote)


def check_lake(lake: Path) -> None:
    """Refuses a folder that is no lake, before Spark is started for nothing."""
    from oxcart.spark.lake.versions import Lake

    if not Lake(lake).numbers():
        raise CommandError(
            f"there are no tables in {lake} yet: fill them by 'oxcart pipeline run --once --lake {lake}', or "
            "name another folder by --lake",
            FAILED,
        )
