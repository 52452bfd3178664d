"""Handlers that may run twice and act once: the three patterns of the formal model.

Delivery is at least once: a worker that dies between the work and the note that it is done leaves a job that
runs again. Every handler here loses its first answer in that way, after its work is committed.

Run it: ``python examples/idempotent.py``.
"""

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from oxcart import Queue, SyncRunningJob, TemporaryError, Worker

shop = Queue("shop", attempts=20, backoff="20ms")
folder = tempfile.TemporaryDirectory()
DATABASE = f"{folder.name}/shop.db"
TABLES = """
CREATE TABLE processed_jobs (job_id TEXT PRIMARY KEY, result TEXT);
CREATE TABLE locks (name TEXT PRIMARY KEY, owner TEXT, until REAL);
CREATE TABLE accounts (id TEXT PRIMARY KEY, cents INTEGER);
CREATE TABLE parcels (address TEXT);
CREATE TABLE customers (id TEXT PRIMARY KEY, name TEXT, version INTEGER);
INSERT INTO accounts VALUES ('ada', 1000);
INSERT INTO customers VALUES ('ada', 'Ada Byron', 1);
"""


@contextmanager
def transaction() -> Iterator[sqlite3.Connection]:
    """A transaction: all of it, or nothing."""
    with closing(sqlite3.connect(DATABASE, timeout=30)) as database, database:
        database.execute("BEGIN IMMEDIATE")
        yield database


def lose_the_answer() -> None:
    """As if the worker died here: what was committed stays, but nobody knows."""
    raise TemporaryError("the answer was lost")


@shop.job
def charge(job: SyncRunningJob, account: str, cents: int) -> str:
    """A unique constraint: that it is done and the work itself are one transaction."""
    with transaction() as database:
        note = "INSERT INTO processed_jobs VALUES (?, ?) ON CONFLICT DO NOTHING"
        is_new = database.execute(note, (job.id, f"charged {cents}")).rowcount == 1
        if is_new:
            database.execute("UPDATE accounts SET cents = cents - ? WHERE id = ?", (cents, account))
        (result,) = database.execute(
            "SELECT result FROM processed_jobs WHERE job_id = ?", (job.id,)
        ).fetchone()
    if is_new:
        lose_the_answer()
    return str(result)


def acquire(name: str, owner: str, seconds: float) -> bool:
    """Takes a lock that nobody has, or that its owner had for too long."""
    with transaction() as database:
        taken = database.execute(
            "INSERT INTO locks VALUES (:name, :owner, :until) ON CONFLICT (name) DO UPDATE "
            "SET owner = :owner, until = :until WHERE until < :now",
            {"name": name, "owner": owner, "until": time.time() + seconds, "now": time.time()},
        )
        return taken.rowcount == 1


def release(name: str, owner: str) -> None:
    """Gives it back, unless somebody else has it by now."""
    with transaction() as database:
        database.execute("DELETE FROM locks WHERE name = ? AND owner = ?", (name, owner))


@shop.job
def ship(job: SyncRunningJob, address: str) -> str:
    """A lock by the idempotency key: for work elsewhere, of which two at once must not even begin."""
    key = job.idempotency_key or job.id
    if not acquire(key, job.attempt_id, seconds=30):
        raise TemporaryError("somebody ships it at this moment", retry_after=0.05)
    try:
        with transaction() as carrier:
            (sent,) = carrier.execute("SELECT count(*) FROM parcels WHERE address = ?", (address,)).fetchone()
            if not sent:
                carrier.execute("INSERT INTO parcels VALUES (?)", (address,))
    finally:
        release(key, job.attempt_id)
    if not sent:
        lose_the_answer()
    return "sent before"


@shop.job
def rename(customer: str, name: str, expected_version: int) -> str:
    """A version check: it changes what it was made for, and nothing that has changed since."""
    with transaction() as database:
        changed = database.execute(
            "UPDATE customers SET name = ?, version = version + 1 WHERE id = ? AND version = ?",
            (name, customer, expected_version),
        ).rowcount
    if changed:
        lose_the_answer()
    return "the version is another one by now"


async def main() -> None:
    """Runs each of them; every job runs more than once."""
    with closing(sqlite3.connect(DATABASE)) as database:
        database.executescript(TABLES)
    async with shop, Worker(shop, concurrency=3).running():
        acquire("order-7", "another worker", seconds=0.5)  # the first to try finds the lock taken
        jobs = [
            await charge.enqueue(account="ada", cents=100),
            await ship.using(idempotency_key="order-7").enqueue(address="St James's Square"),
            await rename.enqueue(customer="ada", name="Ada Lovelace", expected_version=1),
        ]
        results = [await job.result(timeout=30) for job in jobs]
        runs = [(await job.get()).attempts_made for job in jobs]
    with closing(sqlite3.connect(DATABASE)) as database:
        left = database.execute("SELECT cents FROM accounts").fetchall()
        sent = database.execute("SELECT count(*) FROM parcels").fetchall()
        named = database.execute("SELECT name, version FROM customers").fetchall()
    for run, result, state in zip(runs, results, (left, sent, named), strict=True):
        print("ran again -" if run > 1 else "ran once -", result, state)


if __name__ == "__main__":
    asyncio.run(main())
