"""The dead letters of a queue behind an HTTP API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

import msgspec

from oxcart.broker.port.results import DeadDone
from oxcart.dead_letters import DeadLetters, Which
from oxcart.http.refused import ApiRefused, unsupported
from oxcart.http.remote_jobs import chosen, job_of, span, texts
from oxcart.http.values import JobBody
from oxcart.jobs import OnProgress
from oxcart.model.errors import WrongState
from oxcart.model.job import Job

if TYPE_CHECKING:
    import httpx

    from oxcart.http.remote import RemoteQueue


def _remote(queue: Any) -> RemoteQueue:
    found: RemoteQueue = queue
    return found


class _Letters(msgspec.Struct):
    jobs: list[JobBody]
    matched: int | None = None


class RemoteDeadLetters(DeadLetters):
    """The dead letters of a queue behind an HTTP API."""

    @property
    def _path(self) -> str:
        return f"{_remote(self._queue).path}/dead-letters"

    async def list(self, *, limit: int = 100, oldest: bool = False, **which: Unpack[Which]) -> Sequence[Job]:
        """Returns dead letters, newest first.

        Raises:
            NotSupported: ``oldest``, or a filter by ``since``, ``until`` or ``permanent``.
        """
        if oldest:
            raise unsupported("dead_letters", "oldest first")
        return [job_of(body) for body in (await self._read(which, limit)).jobs]

    async def _read(self, which: Which, limit: int, **more: Any) -> _Letters:
        given = _known(which)
        tags = given.pop("tags", {})
        params = chosen(limit=limit, tag=[f"{key}={value}" for key, value in tags.items()], **given, **more)
        answer = await _remote(self._queue).client.send("GET", self._path, params=params)
        return msgspec.json.decode(answer.content, type=_Letters)

    async def _call(
        self, method: str, job_id: str, rest: str = "", body: Any = None, **params: Any
    ) -> httpx.Response:
        path = f"{self._path}/{quote(job_id, safe='')}{rest}"
        try:
            return await _remote(self._queue).client.send(method, path, body, params=params, job_id=job_id)
        except ApiRefused as error:
            if error.status == 409:
                raise WrongState(job_id, str(error)) from error
            raise

    async def count(self, **which: Unpack[Which]) -> int:
        """Returns how many dead letters there are.

        Raises:
            NotSupported: A filter by ``since``, ``until`` or ``permanent``.
        """
        matched = (await self._read(which, 1, counted=True)).matched
        # A server of an earlier version counts only as a dry run, which needs an admin.
        return (await self.purge_all(dry_run=True, **which)).matched if matched is None else matched

    async def get(self, job_id: str, *, permanent: bool = False) -> Job:
        """Returns a dead letter, without its payload.

        Raises:
            JobNotFound: There is no such job.
            WrongState: It is no dead letter.
        """
        answer = await self._call("GET", job_id, permanent=permanent)
        return job_of(msgspec.json.decode(answer.content, type=JobBody))

    async def replay(self, job_id: str, *, reset: bool = True, permanent: bool = False) -> None:
        """Lets a dead letter run again.

        Raises:
            JobNotFound: There is no such job.
            WrongState: It is no dead letter.
        """
        await self._call("POST", job_id, "/replay", {"reset_attempts": reset}, permanent=permanent)

    async def purge(self, job_id: str, *, permanent: bool = False) -> None:
        """Removes a dead letter for good.

        Raises:
            JobNotFound: There is no such job.
            WrongState: It is no dead letter.
        """
        await self._call("DELETE", job_id, permanent=permanent)

    async def replay_all(
        self,
        *,
        reset: bool = True,
        rate: float | None = None,
        dry_run: bool = False,
        limit: int | None = None,
        progress: OnProgress | None = None,
        **which: Unpack[Which],
    ) -> DeadDone:
        """Lets dead letters that match run again, at most 10 000."""
        if rate is not None:
            raise unsupported("dead_letters", "a rate of replays")
        return await self._many("replay", chosen(reset_attempts=reset, dry_run=dry_run, limit=limit), which)

    async def purge_all(
        self,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        progress: OnProgress | None = None,
        **which: Unpack[Which],
    ) -> DeadDone:
        """Removes dead letters that match for good, at most 10 000."""
        return await self._many("purge", chosen(dry_run=dry_run, limit=limit), which)

    async def _many(self, verb: str, body: dict[str, Any], which: Which) -> DeadDone:
        body |= _known(which)
        client = _remote(self._queue).client
        found = await client.call("POST", f"{self._path}/{verb}", dict[str, Any], body, extra=60)
        return DeadDone(
            matched=found["matched"], done=found["changed"], ids=found["ids"], dry_run=found["dry_run"]
        )


def _known(which: Which) -> dict[str, Any]:
    """Returns the filters of a request.

    Raises:
        NotSupported: The API lacks one.
    """
    given: dict[str, Any] = dict(which)
    names = {"name", "category", "reason", "tags", "correlation_id", "older_than", "newer_than"}
    if given.keys() - names:
        raise unsupported("dead_letters", "since, until and permanent for dead letters")
    return chosen(
        type=texts(given.get("name")),
        category=texts(given.get("category")),
        reason=given.get("reason"),
        tags=dict(given.get("tags") or {}),
        correlation_id=given.get("correlation_id"),
        older_than=span(given.get("older_than"), "older_than"),
        newer_than=span(given.get("newer_than"), "newer_than"),
    )
