"""``oxcart access …``: makes, lists, rotates and revokes API keys, and reads the audit log."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import FAILED, CommandError
from oxcart.cli.settings import JsonOption

if TYPE_CHECKING:
    from oxcart.broker.access import AccessStore
    from oxcart.model.access import AccessKey

T = TypeVar("T")

app = settings.group("access", "Make and revoke API keys of the HTTP API, and read its audit log.")

KeyArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of a key.", show_default=False)]


def _on_store(ctx: typer.Context, work: Callable[[AccessStore], Awaitable[T]]) -> T:
    async def act() -> T:
        from oxcart.broker.access import AccessStore

        using = settings.of(ctx)
        store = AccessStore(using.server, using.namespace or using.prefix, using.reconnect)
        try:
            return await work(store)
        finally:
            await store.close()

    return settings.run(act())


async def _key(store: AccessStore, key_id: str) -> AccessKey:
    found = await store.get(key_id)
    if found is not None:
        return found
    raise CommandError(f"there is no API key {key_id}; oxcart access list shows them", FAILED)


def _new(now: int, name: str, grants: tuple[str, ...], **more: Any) -> tuple[AccessKey, str]:
    import secrets

    from oxcart.model.access import ID_BYTES, SECRET_BYTES, AccessKey, digest, key_text

    key_id, text = key_text(secrets.token_bytes(ID_BYTES), secrets.token_bytes(SECRET_BYTES))
    made = AccessKey(
        id=key_id,
        name=name,
        hash=digest(text).hex(),
        grants=grants,
        created_ms=now,
        created_by=_who(),
        **more,
    )
    return made, text


def _who() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


def _show_new(key: AccessKey, text: str, as_json: bool) -> None:
    if as_json:
        output.document({**_facts(key, key.created_ms), "key": text})
        return
    output.text(text)
    words = [f"key {key.id} for {key.name}: {', '.join(key.grants)}"]
    words += [f"expires {output.moment(key.expires_ms)}"] if key.expires_ms else []
    output.error(f"{'; '.join(words)}. It is shown only now.")


@app.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Who uses the key, for example billing-service.")],
    grants: Annotated[
        list[str],
        typer.Option(
            "--grant",
            metavar="ROLE[@PATTERN]",
            help="observer, submitter, operator or admin, on all queues or on some; repeatable.",
        ),
    ],
    expires: Annotated[
        str | None, typer.Option(help="How long it works, for example 90d.", show_default="for ever")
    ] = None,
    payloads: Annotated[
        bool, typer.Option("--payloads", help="May read payloads and results that its role hides.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make an API key and print it, once."""
    from oxcart.model.access import check_key_name, parse_grants
    from oxcart.model.duration import parse_ms

    check_key_name(name)
    read = tuple(str(grant) for grant in parse_grants(grants))
    lasts = None if expires is None else parse_ms(expires, "expires", minimum=1)

    async def act(store: AccessStore) -> tuple[AccessKey, str]:
        now = await store.now_ms()
        made, text = _new(
            now, name, read, payloads=payloads, expires_ms=None if lasts is None else now + lasts
        )
        await store.put(made)
        return made, text

    _show_new(*_on_store(ctx, act), as_json)


@app.command("list")
def list_keys(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List the API keys, without their secrets."""

    async def act(store: AccessStore) -> tuple[list[AccessKey], int]:
        return await store.keys(), await store.now_ms()

    keys, now = _on_store(ctx, act)
    if as_json:
        output.document([_facts(key, now) for key in keys])
        return
    rows = [
        (
            key.id,
            key.name,
            ", ".join(key.grants) + (" +payloads" if key.payloads else ""),
            key.state(now),
            output.moment(key.created_ms),
            "never" if key.expires_ms is None else output.moment(key.expires_ms),
        )
        for key in keys
    ]
    output.table(("id", "name", "grants", "state", "created", "expires"), rows)


@app.command()
def rotate(
    ctx: typer.Context,
    key_id: KeyArgument,
    grace: Annotated[str, typer.Option(help="How long the old key still works.")] = "24h",
    expires: Annotated[
        str | None, typer.Option(help="How long the new one works.", show_default="as long as the old one")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key with the same grants, and let the old one expire."""
    import msgspec

    from oxcart.model.duration import parse_ms

    after = parse_ms(grace, "grace")
    lasts = None if expires is None else parse_ms(expires, "expires", minimum=1)

    async def act(store: AccessStore) -> tuple[AccessKey, str]:
        old, now = await _key(store, key_id), await store.now_ms()
        if old.state(now) != "active":
            raise CommandError(f"API key {key_id} is {old.state(now)}; make a new one", FAILED)
        span = None if old.expires_ms is None else old.expires_ms - old.created_ms
        span = span if lasts is None else lasts
        made, text = _new(
            now,
            old.name,
            old.grants,
            payloads=old.payloads,
            expires_ms=None if span is None else now + span,
            replaces=old.id,
        )
        ends = now + after if old.expires_ms is None else min(old.expires_ms, now + after)
        await store.put(made, msgspec.structs.replace(old, expires_ms=ends))
        return made, text

    _show_new(*_on_store(ctx, act), as_json)


@app.command()
def revoke(ctx: typer.Context, key_id: KeyArgument) -> None:
    """End an API key and its sessions; servers notice within 5 s."""
    import msgspec

    async def act(store: AccessStore) -> None:
        key = await _key(store, key_id)
        if key.revoked_ms is None:
            await store.put(msgspec.structs.replace(key, revoked_ms=await store.now_ms()))

    _on_store(ctx, act)
    output.text(f"API key {key_id} is revoked")


@app.command()
def forget(ctx: typer.Context, key_id: KeyArgument) -> None:
    """Remove a revoked or expired key's record; without any record no key is needed on this machine."""

    async def act(store: AccessStore) -> None:
        key = await _key(store, key_id)
        if key.state(await store.now_ms()) == "active":
            raise CommandError(f"API key {key_id} is active; revoke it first", FAILED)
        await store.forget(key_id)

    _on_store(ctx, act)
    output.text(f"API key {key_id} is forgotten")


@app.command("sign-out-all")
def sign_out_all(ctx: typer.Context) -> None:
    """End all sessions of the dashboard; servers notice within a minute."""

    async def act(store: AccessStore) -> None:
        await store.renew_session_secret()

    _on_store(ctx, act)
    output.text("all sessions end within a minute")


@app.command()
def audit(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Entries, newest first.")] = 50,
    caller: Annotated[str | None, typer.Option(help="Only of this key or user.", show_default="all")] = None,
    queue: Annotated[str | None, typer.Option(help="Only about this queue.", show_default="all")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show who did what over HTTP, newest first."""

    async def act(store: AccessStore) -> list[Any]:
        found: list[Any] = []
        async for entry in store.audit():
            if caller in (None, entry.who) and queue in (None, entry.queue):
                found.append(entry)
            if len(found) == limit:
                break
        return found

    entries = _on_store(ctx, act)
    if as_json:
        import msgspec

        output.document([{**msgspec.structs.asdict(entry), "at_ms": entry.at_ms} for entry in entries])
        return
    rows = [
        (
            output.moment(entry.at_ms),
            entry.name or entry.who,
            entry.address,
            entry.action,
            entry.queue,
            entry.job_id,
            str(entry.status),
        )
        for entry in entries
    ]
    output.table(("at", "who", "from", "action", "queue", "job", "status"), rows)


def _facts(key: AccessKey, now: int) -> dict[str, Any]:
    import msgspec

    facts = msgspec.structs.asdict(key)
    del facts["hash"]
    return {**facts, "state": key.state(now)}
