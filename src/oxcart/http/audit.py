"""The audit log: who did what, as a bounded stream beside the queues, and the route that reads it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.params import FromQuery, QueryParameter
from litestar.types import HTTPScope
from msgspec import Meta

from oxcart.broker.access import AccessStore, AuditEntry
from oxcart.http import values
from oxcart.http.credentials import Caller
from oxcart.http.routes import Api, answers
from oxcart.http.service import Service
from oxcart.http.times import rfc3339_ms
from oxcart.model.access import Role
from oxcart.model.errors import OxcartError, ValidationError
from oxcart.observe.terminal import clean

log = logging.getLogger("oxcart.http.audit")

#: Entries of a page at most, and entries that a page reads at most to find them.
MAX_PAGE, SCAN = 1000, 20_000

_facts: ContextVar[dict[str, Any] | None] = ContextVar("oxcart_audit_facts", default=None)


def note(**facts: Any) -> None:
    """Adds facts to the audit entry of the request under way, for example how many jobs were changed."""
    known = _facts.get()
    if known is not None:
        known |= facts


class Audit:
    """Writes entries for requests that change something.

    Args:
        store: Where the log is; None to write them to the program's log alone.
    """

    def __init__(self, store: AccessStore | None) -> None:
        self._store = store

    def begin(self) -> None:
        """Begins a request: facts that its route notes belong to it."""
        _facts.set({})

    async def record(self, scope: HTTPScope, status: int, request_id: str) -> None:
        """Records a request that was answered, if it is one of those that are recorded.

        Recorded are all that need the role operator or admin and change something, cancellations, signing in
        and out, and refusals of those. Added jobs are not: they name themselves.
        """
        entry = _entry(scope, status, request_id)
        if entry is None:
            return
        log.info(
            "%s %s: %s, status %d, request %s",
            entry.kind, clean(entry.who), entry.action, status, request_id,
        )  # fmt: skip
        if self._store is None:
            return
        try:
            await self._store.record(entry)
        except OxcartError as error:
            log.error("could not record %s of request %s: %s", entry.action, request_id, error)


def _entry(scope: Any, status: int, request_id: str) -> AuditEntry | None:
    caller: Caller | None = scope.get("oxcart.caller")
    handler = scope.get("route_handler")
    if caller is None or handler is None or scope["method"] in ("GET", "HEAD", "OPTIONS"):
        return None
    role = handler.opt.get("role", Role.ADMIN)
    if not (handler.opt.get("audit") or handler.opt.get("from_page")) and (role or 0) < Role.OPERATOR:
        return None
    places: Mapping[str, Any] = scope.get("path_params", {})
    facts = {name: value for name, value in places.items() if name not in ("name", "job_id")}
    facts |= _facts.get() or {}
    # Pages name their queue and job in the address' query, which their routes note.
    queue, job_id = facts.pop("queue", ""), facts.pop("job_id", "")
    client = scope.get("client")
    return AuditEntry(
        caller=caller.id,
        name=caller.name,
        kind=caller.kind,
        address="" if client is None else str(client[0]),
        action=f"{scope['method']} {_template(scope)}",
        queue=str(places.get("name", queue)),
        job_id=str(places.get("job_id", job_id)),
        status=status,
        request_id=request_id,
        facts=facts,
    )


def _template(scope: Any) -> str:
    template: str = scope.get("path_template", scope["path"])
    return template.replace(":str}", "}")


class AuditRow(msgspec.Struct, kw_only=True):
    """What a caller did."""

    id: Annotated[str, Meta(description="Its position in the log; pass it as before for older ones.")]
    at: values.Time
    caller: str
    name: str
    kind: str
    address: str
    action: Annotated[str, Meta(examples=["POST /api/v1/queues/{name}/pause"])]
    queue: str
    job_id: str
    status: int
    request_id: str
    facts: dict[str, Any]


class AuditPage(msgspec.Struct, kw_only=True):
    """Entries, newest first."""

    entries: list[AuditRow]
    next_before: Annotated[str | None, Meta(description="Pass it as before for the next page.")] = None


@get(
    "/api/v1/audit",
    summary="Read the audit log",
    responses=answers(ok=(200, AuditPage, "Entries, newest first.")),
    opt={"role": Role.ADMIN},
)
async def audit(
    service: Api,
    caller: Annotated[str | None, QueryParameter(description="Only of this key or user.")] = None,
    queue: Annotated[str | None, QueryParameter(description="Only about this queue.")] = None,
    action: Annotated[str | None, QueryParameter(description="Only actions that contain this text.")] = None,
    before: Annotated[str | None, QueryParameter(description="Only entries before this id.")] = None,
    limit: FromQuery[int] = 100,
) -> AuditPage:
    """Returns who did what, newest first. An admin of some queues sees the entries of those alone."""
    return await read_entries(service, caller=caller, queue=queue, action=action, before=before, limit=limit)


async def read_entries(
    service: Service,
    *,
    caller: str | None,
    queue: str | None,
    action: str | None,
    before: str | None,
    limit: int,
) -> AuditPage:
    """Returns a page of the log, as far as the caller of the service may see it.

    Raises:
        ValidationError: The limit or the id is wrong.
    """
    values.check_page_size(limit, MAX_PAGE)
    if before is not None and not all(part.isascii() and part.isdigit() for part in before.split("-", 1)):
        raise ValidationError("before", "the id of an entry", before)
    store, asker = service.store, service.viewer
    found: list[AuditRow] = []
    if store is None or asker is None:
        return AuditPage(entries=found)
    everything, read, last = asker.has_everywhere(Role.ADMIN), 0, ""
    async for entry in store.audit(before):
        read += 1
        if len(found) == limit or read > SCAN:
            return AuditPage(entries=found, next_before=last)
        last = entry.id
        visible = everything or entry.queue in service.queues
        if (
            visible
            and caller in (None, entry.who)
            and queue in (None, entry.queue)
            and (action is None or action.lower() in entry.action.lower())
        ):
            found.append(_row(entry))
    return AuditPage(entries=found)


def _row(entry: AuditEntry) -> AuditRow:
    return AuditRow(**msgspec.structs.asdict(entry), at=rfc3339_ms(entry.at_ms))


ROUTES = [audit]
