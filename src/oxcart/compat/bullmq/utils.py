"""Small functions that users of PyPI's package import from its ``utils``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def isRedisVersionLowerThan(current_version: str | None, minimum_version: str) -> bool:
    """Returns whether a server is older than a version; a server without a version counts as new."""
    if current_version is None:
        return False
    return _numbers(current_version) < _numbers(minimum_version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def get_parent_key(opts: Mapping[str, Any] | None) -> str | None:
    """Returns the key of the job that ``opts["parent"]`` names, or None."""
    return f"{opts.get('queue')}:{opts.get('id')}" if opts else None


def parse_json_string_values(input_dict: Mapping[str, str]) -> dict[str, Any]:
    """Returns the same dict with its JSON texts decoded."""
    return {key: json.loads(value) for key, value in input_dict.items()}


def object_to_flat_array(obj: Mapping[str, Any]) -> list[Any]:
    """Returns keys and values of a dict in turn."""
    return [part for pair in obj.items() for part in pair]


def is_redis_cluster(client: Any) -> bool:
    """Returns whether a client of redis-py is a cluster client."""
    return any(getattr(client, name, None) for name in ("is_cluster", "isCluster", "nodes_manager"))
