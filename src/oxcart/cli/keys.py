"""``oxcart keys …``: makes keys for sealed values, and re-seals stored values under a new key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oxcart.cli import output, settings
from oxcart.cli.exits import FAILED, USAGE, CommandError
from oxcart.cli.settings import JsonOption, Settings

if TYPE_CHECKING:
    from oxcart.broker.keyring import KeyRing
    from oxcart.broker.resealing import Resealed

app = settings.group("keys", "Make keys, and re-seal stored values under the current one.")

#: The most walks through the values: the next walk finds values that workers changed meanwhile.
WALKS = 5


@app.command()
def generate() -> None:
    """Print a new key as base64, for OXCART_KEYS=<id>:<key>."""
    from oxcart.broker.keyring import KeyRing

    output.text(KeyRing.generate())


@app.command()
def rotate(
    ctx: typer.Context,
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE...", help="Names of queues.")],
    keys_env: Annotated[
        str, typer.Option(help="The variable with the keys; the first of them is the current one.")
    ] = "OXCART_KEYS",
    migrate: Annotated[
        bool,
        typer.Option(
            "--migrate", help="Also seal payloads in plaintext, and re-seal envelopes of version 1."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be re-sealed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Re-seal stored values of queues under the current key; exit code 1 where some cannot be opened.

    Workers may run meanwhile, and the command may be repeated. Drop the old key when no value needs it.
    """
    from oxcart.broker.keyring import KeyRing

    ring = KeyRing.from_env(keys_env, migrating=migrate)
    if ring is None:
        raise CommandError(f"{keys_env} is not set: it must hold id:key pairs, the current one first", USAGE)
    found = {name: settings.run(_rotate(settings.of(ctx), name, ring, dry_run, as_json)) for name in queues}
    if as_json:
        import msgspec

        output.document({name: msgspec.to_builtins(one) for name, one in found.items()})
    else:
        for name, one in found.items():
            output.text(_line(name, one, ring.current, dry_run))
    if any(one.unopened or one.changed for one in found.values()):
        raise typer.Exit(FAILED)


async def _rotate(using: Settings, name: str, ring: KeyRing, dry_run: bool, quiet: bool) -> Resealed:
    from oxcart.broker.factory import make_broker
    from oxcart.broker.resealing import reseal
    from oxcart.cli.progress import Bar

    bridge = using.namespace is not None
    broker = make_broker(
        "bridge" if bridge else "bullmq",
        using.server,
        name,
        prefix=using.namespace or using.prefix,
        reconnect=using.reconnect,
        key_ring=ring,
    )
    resealed = 0
    try:
        with Bar(f"{name}: re-sealing", quiet=quiet) as bar:
            for _ in range(WALKS):
                done = await reseal(broker, dry_run=dry_run, progress=bar.update)
                resealed += done.resealed
                if not done.changed:
                    break
    finally:
        await broker.close()
    done.resealed = resealed
    return done


def _line(name: str, done: Resealed, key: str, dry_run: bool) -> str:
    verb = "would be re-sealed" if dry_run else "re-sealed"
    parts: list[Any] = [f"{done.resealed:,} values {verb} with key {key}", f"{done.current:,} were already"]
    if done.changed:
        parts.append(f"{done.changed:,} changed meanwhile, run it again")
    parts += [f"{count:,} left as they are ({reason})" for reason, count in sorted(done.unopened.items())]
    return f"{name}: {'; '.join(parts)}"
