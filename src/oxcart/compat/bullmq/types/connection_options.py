"""The type of connection options, for annotations."""

from __future__ import annotations

from typing import Any

#: A URL, arguments of redis-py's constructor, or a client of redis-py (standalone, Sentinel or cluster).
ConnectionOptions = dict[str, Any] | str | Any
