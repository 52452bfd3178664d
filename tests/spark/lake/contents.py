"""The files of a lake as bytes, to search them for what must not be there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path


def contents(root: Path) -> Iterator[bytes]:
    """Yields every file as bytes; tables, checkpoints of logs and segments of a spool also uncompressed."""
    import pyarrow as pa
    from pyarrow import parquet

    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        yield str(path.relative_to(root)).encode()
        yield path.read_bytes()
        if path.suffix == ".parquet":
            rows = parquet.ParquetFile(path).read().to_pylist()
        elif path.suffix == ".arrow":
            rows = pa.ipc.open_file(path).read_all().to_pylist()
        else:
            continue
        yield json.dumps(rows, default=str).encode()


def words_in(root: Path, *words: str) -> set[str]:
    """Returns those of some words that are in a file of a lake, or in its name."""
    return {word for word in words if any(word.encode() in part for part in contents(root))}
