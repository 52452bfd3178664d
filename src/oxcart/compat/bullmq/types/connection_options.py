"""Where the server is, for those who annotate it."""

from __future__ import annotations

from typing import Any

#: A URL, what redis-py's constructor takes, or a client of redis-py (standalone, Sentinel or cluster).
ConnectionOptions = dict[str, Any] | str | Any
