"""The newest version of the lake's tables as Iceberg tables, over the same files.

A catalog in SQLite (``_iceberg/catalog.db`` in the lake) has one table per Delta table, partitioned by day.
No row is copied: Iceberg's metadata names the files of the lake. The view is of one version. It is made anew
by the next call, and its files are deleted by the lake a day after they were replaced.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from oxcart.model.errors import MissingExtra
from oxcart.spark.lake.columns import STORED, public
from oxcart.spark.lake.delta import arrow_type
from oxcart.spark.lake.files import ICEBERG

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

    from oxcart.spark.lake.versions import Lake

NAMESPACE = "oxcart"
#: The property of an Iceberg table with the version of its Delta table.
_VERSION = "oxcart.delta-version"


def open_catalog(lake: Lake) -> SqlCatalog:
    """Opens the catalog of a lake, for ``load_table("oxcart.jobs")``.

    Raises:
        MissingExtra: pyiceberg is not installed.
    """
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ImportError:
        raise MissingExtra("Iceberg tables", "iceberg") from None
    folder = lake.root / ICEBERG
    folder.mkdir(parents=True, exist_ok=True)
    return SqlCatalog(NAMESPACE, uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=folder.as_uri())


def show_iceberg(lake: Lake, tables: Iterable[str] = tuple(STORED)) -> dict[str, int]:
    """Makes Iceberg tables of the newest version.

    Args:
        lake: The lake.
        tables: Which tables.

    Returns:
        The tables that were made anew, each with its number of files.
    """
    catalog = open_catalog(lake)
    head = lake.head()
    catalog.create_namespace_if_not_exists(NAMESPACE)
    made: dict[str, int] = {}
    for table in tables:
        version = str(head.tables.get(table, -1))
        if _shown(catalog, table) == version:
            continue
        paths = [str(lake.root / file.path) for file in head.of(table)]
        _make(catalog, table, version, paths)
        made[table] = len(paths)
    return made


def _shown(catalog: SqlCatalog, table: str) -> str | None:
    """The version of the Delta table that the Iceberg table shows."""
    from pyiceberg.exceptions import NoSuchTableError

    with contextlib.suppress(NoSuchTableError):
        return catalog.load_table((NAMESPACE, table)).properties.get(_VERSION)
    return None


def _make(catalog: SqlCatalog, table: str, version: str, paths: list[str]) -> None:
    import pyarrow as pa
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.transforms import IdentityTransform

    schema: Any = pa.schema([(name, arrow_type(kind)) for name, kind in public(table).items()])
    # The new table is complete before it gets the name, so that a reader never finds half of one.
    draft = (NAMESPACE, f"{table}_{os.getpid()}")
    made = catalog.create_table(draft, schema, properties={_VERSION: version})
    with made.update_spec() as spec:
        spec.add_field("day", IdentityTransform(), "day")
    if paths:
        made.add_files(paths, check_duplicate_files=False)
    with contextlib.suppress(NoSuchTableError):
        catalog.drop_table((NAMESPACE, table))
    catalog.rename_table(draft, (NAMESPACE, table))
