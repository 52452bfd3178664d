"""The audit log: who did what, newest first, for admins."""

from __future__ import annotations

from typing import Any

from oxcart.http.access import ADMIN
from oxcart.http.audit import read_entries
from oxcart.http.web.dashboard import View, page
from oxcart.http.web.page import link

#: Entries of a page.
ROWS = 100


class AuditPage(View):
    """The audit log."""

    title = "Audit"
    template = "audit.html"
    nav = "audit"

    async def load(self) -> dict[str, Any]:
        """Reads a page of the log."""
        given = {name: self.query.get(name) or None for name in ("caller", "queue", "action")}
        before = self.query.get("before") or None
        found = await read_entries(self.service, **given, before=before, limit=ROWS)
        return {
            "entries": found.entries,
            "given": given,
            "next": link("/audit", **given, before=found.next_before) if found.next_before else "",
        }


ROUTES = page("/audit", AuditPage, ADMIN)
