"""JSON bodies of requests with an example each, which the OpenAPI document shows."""

from __future__ import annotations

from typing import Any

from litestar.enums import RequestEncodingType
from litestar.openapi.spec import Example
from litestar.params import Body


def _json(example: dict[str, Any]) -> Any:
    return Body(media_type=RequestEncodingType.JSON, examples=[Example(value=example)])


SUBMIT = _json({"type": "welcome", "payload": {"to": "ada@example.com"}, "delay": "5m", "max_attempts": 5})
BATCH = _json({"jobs": [{"type": "welcome", "payload": {"to": "ada@example.com"}}], "atomic": True})
CHANGES = _json({"tags": {"tenant": "acme"}, "priority": 1})
CANCEL = _json({"reason": "no longer needed", "force": False})
RETRY = _json({"reset_attempts": True})
WAIT = _json({"timeout": "10ms"})
SIGNAL = _json({"signal": "approved", "data": {"by": "ada"}})
FLOW = _json(
    {"jobs": [{"ref": "fetch", "type": "fetch"}, {"ref": "merge", "type": "merge", "after": ["fetch"]}]}
)
CLEAN = _json({"state": "completed", "grace": "24h"})
CLEAR = _json({"delayed": True})
OBLITERATE = _json({"name": "emails", "force": False})
CANCEL_MANY = _json({"type": ["welcome"], "tags": {"tenant": "acme"}, "dry_run": True})
RETRY_MANY = _json({"state": "failed", "since": "2h", "dry_run": True})
REPLAY = _json({"type": ["charge"], "older_than": "1h", "dry_run": True})
PURGE = _json({"category": ["system"], "older_than": "168h", "dry_run": True})
REPLAY_ONE = _json({"reset_attempts": True})
SCHEDULE = _json({"cron": "0 7 * * MON-FRI", "tz": "Europe/Berlin", "type": "digest"})
LIMITS = _json({"concurrency": 10, "types": {"render": {"concurrent": 2}}})
GROUP_LIMITS = _json({"group": "acme", "concurrent": 5, "weight": 2.0})
GROUP = _json({"group": "acme"})
GROUP_CANCEL = _json({"group": "acme", "reason": "the customer left"})
