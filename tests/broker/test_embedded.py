"""The embedded server: which process starts or joins it, and that it ends with its last user."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from oxcart.broker.embedded import Embedded, EmbeddedServerError, data_folder, status
from oxcart.broker.location import Location
from oxcart.model.errors import ValidationError
from tests.broker.folder_users import Users, assert_nothing_left, client, is_gone, pids, processes
from tests.servers import wait_until

pytestmark = pytest.mark.slow

# --- joining and leaving --------------------------------------------------------------------------


def test_a_second_process_joins_the_first_one_s_server(folder: Path, users: Users) -> None:
    first = users(folder)
    began = pids(folder)
    second = users(folder)
    assert pids(folder) == began
    first.ask("call", "SET", "word", "hello")
    assert second.ask("call", "GET", "word") == "hello"
    found = status(folder)
    assert found is not None
    assert sorted(user["pid"] for user in found["users"]) == sorted([first.pid, second.pid])


@pytest.mark.parametrize("order", ["starter first", "joiner first"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_server_stays_for_the_last_user_and_then_goes(
    folder: Path, users: Users, number: signal.Signals, order: str
) -> None:
    one, other = users(folder), users(folder)
    if order == "joiner first":
        one, other = other, one
    one.ask("call", "SET", "word", "hello")
    known = pids(folder)

    one.end(number)
    wait_until(lambda: len((status(folder) or {"users": []})["users"]) == 1, "the keeper counts one user")
    assert other.ask("call", "GET", "word") == "hello"
    assert pids(folder) == known

    other.end(number)
    assert_nothing_left(folder, *known)

    assert users(folder).ask("call", "GET", "word") == "hello"
    assert pids(folder) != known


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_lone_user_s_end_ends_the_server(folder: Path, users: Users, number: signal.Signals) -> None:
    user = users(folder)
    known = pids(folder)
    user.end(number)
    assert_nothing_left(folder, *known)


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.02, 0.04, 0.06, 0.08, 0.12])
def test_a_user_killed_while_it_starts_the_server_leaves_nothing(
    folder: Path, users: Users, delay: float
) -> None:
    user = users(folder, wait=False)
    wait_until((folder / "keeper.log").exists, "the keeper is being started")
    time.sleep(delay)
    user.end(signal.SIGKILL)
    # A forked child may not show its program yet.
    for _ in range(20):
        assert_nothing_left(folder)
        time.sleep(0.01)


def test_a_terminal_s_interrupt_does_not_reach_the_server(folder: Path, users: Users) -> None:
    user = users(folder)
    for pid in pids(folder):
        assert os.getsid(pid) != os.getsid(user.pid)


def test_ten_processes_that_open_at_once_share_one_server(folder: Path, users: Users) -> None:
    crowd = [users(folder, wait=False) for _ in range(10)]
    assert [user.answer() for user in crowd] == ["ready"] * 10
    for number, user in enumerate(crowd):
        user.ask("call", "SET", f"user-{number}", number)
    assert crowd[0].ask("call", "DBSIZE") == 10
    found = status(folder)
    assert found is not None
    assert len(found["users"]) == 10
    assert found["generation"] == 1
    assert len(processes(folder)) == 2


def test_opening_while_the_server_is_stopping_works(folder: Path) -> None:
    embedded = Embedded(folder)
    seen = set()
    for count in range(20):
        with client(embedded.ensure()) as link:
            assert link.incr("count") == count + 1
        seen.add(pids(folder)[1])
        # In turn: right after the release, after the keeper closed its socket, and when the linger ends.
        embedded.release(wait=0.001 if count % 3 else 0)
        if count % 3 == 2:
            wait_until(lambda: not (folder / "keeper.sock").exists(), "the keeper is stopping")
        elif count % 3 == 0:
            time.sleep(0.49 + count / 1000)
    embedded.release(wait=10)
    assert_nothing_left(folder)
    assert len(seen) > 6, "every start after the socket was closed made another server"


def test_releasing_with_a_wait_stops_the_server_before_it_returns(embedded: Embedded, folder: Path) -> None:
    embedded.ensure()
    keeper, server = pids(folder)
    embedded.release(wait=60)
    assert is_gone(server)
    wait_until(lambda: is_gone(keeper), "the keeper has ended")
    attached: bool = embedded.is_attached
    assert not attached


def test_releasing_with_a_wait_leaves_the_server_to_others(
    embedded: Embedded, folder: Path, users: Users
) -> None:
    other = users(folder)
    embedded.ensure()
    began = time.monotonic()
    embedded.release(wait=100)
    assert time.monotonic() - began < 50
    assert other.ask("call", "PING") == "PONG" or other.ask("attached")


def test_a_starter_is_left_with_no_child_to_wait_for(folder: Path) -> None:
    # In a separate process: this one has children, the servers of other tests.
    code = """
import os, sys
from oxcart.broker.embedded import Embedded
embedded = Embedded(sys.argv[1])
embedded.ensure()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("none")
embedded.release(wait=10)
"""
    command = [sys.executable, "-c", code, str(folder)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "none\n"


# --- handles, threads, loops ----------------------------------------------------------------------


def test_handles_share_the_process_s_hold(folder: Path) -> None:
    one, other = Embedded(folder), Embedded(str(folder))
    assert one.ensure() == other.ensure()
    found = status(folder)
    assert found is not None
    assert len(found["users"]) == 1
    one.release()
    assert other.is_attached
    other.release(wait=10)
    assert_nothing_left(folder)


def test_threads_that_open_at_once_share_one_hold(embedded: Embedded, folder: Path) -> None:
    barrier = threading.Barrier(8)
    places = []

    def open_it() -> None:
        barrier.wait()
        places.append(embedded.ensure())

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(places)) == 1
    assert len(places) == 8
    found = status(folder)
    assert found is not None
    assert len(found["users"]) == 1


async def test_the_event_loop_goes_on_while_the_server_starts(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticked = threading.Event()
    ensure = embedded.ensure

    def start_after_the_tick() -> Location:
        assert ticked.wait(20), "the loop was blocked"
        return ensure()

    monkeypatch.setattr(embedded, "ensure", start_after_the_tick)
    starting = asyncio.create_task(embedded.ensure_async())
    asyncio.get_running_loop().call_later(0.005, ticked.set)
    place = await starting
    assert await embedded.ensure_async() == place == embedded.ensure()


# --- after a fork ---------------------------------------------------------------------------------


def test_a_forked_child_attaches_by_itself(folder: Path, users: Users) -> None:
    reader, writer = os.pipe()
    try:
        user = users(folder, pass_fds=(reader,))
        known = pids(folder)
        user.tell("fork", reader)
        assert user.answer() == ["attached", False]
        assert user.answer() == "forked"
        assert user.ask("call", "GET", "child") == "was here"
        found = status(folder)
        assert found is not None
        assert len(found["users"]) == 2

        user.end(signal.SIGKILL)
        wait_until(lambda: len((status(folder) or {"users": []})["users"]) == 1, "the child is left")
        assert pids(folder) == known
        os.write(writer, b"x")
        assert_nothing_left(folder, *known)
    finally:
        os.close(reader)
        os.close(writer)


def test_a_fork_in_the_middle_of_a_start_does_not_keep_the_server(folder: Path) -> None:
    embedded = Embedded(folder)
    starter = threading.Thread(target=embedded.ensure)
    starter.start()
    children = []
    while starter.is_alive():
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        children.append(child)
        time.sleep(0.01)
    try:
        known = pids(folder)
        embedded.release()
        assert_nothing_left(folder, *known)
        embedded.ensure()
        embedded.release(wait=10)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_fork_waits_while_a_keeper_is_started(embedded: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child forked during the start would block it for as long as the child lives."""
    popen = subprocess.Popen
    forked = threading.Event()

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        forked.set()
        os.waitpid(child, 0)

    forker = threading.Thread(target=fork)

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        forker.start()
        assert not forked.wait(0.1)
        return popen(*args, **options)

    monkeypatch.setattr("oxcart.broker._hold.subprocess.Popen", start)
    embedded.ensure()
    forker.join()
    assert forked.is_set()


# --- settings and status --------------------------------------------------------------------------


def test_the_server_keeps_an_append_only_file_and_evicts_nothing(embedded: Embedded) -> None:
    with client(embedded.ensure()) as link:
        settings: Any = link.config_get("append*", "maxmemory-policy", "save", "port")
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "everysec"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["save"] == ""
    assert settings["port"] == "0"


def test_strictest_appendfsync_applies(folder: Path, users: Users) -> None:
    embedded = Embedded(folder, appendfsync="no")
    try:
        with client(embedded.ensure()) as link:
            assert link.config_get("appendfsync") == {"appendfsync": "no"}
            users(folder)
            wait_until(lambda: link.config_get("appendfsync") == {"appendfsync": "everysec"}, "everysec")
    finally:
        embedded.release(wait=10)


def test_unknown_appendfsync_is_refused(folder: Path) -> None:
    with pytest.raises(ValidationError, match="appendfsync must be always, everysec or no, got 'often'"):
        Embedded(folder, appendfsync="often")  # type: ignore[arg-type]


def test_status_shows_the_server_and_does_not_keep_it(embedded: Embedded, folder: Path) -> None:
    assert status(folder) is None
    place = embedded.ensure()
    found = status(folder)
    assert found is not None
    assert found["location"] == place
    assert found["folder"] == str(folder)
    assert found["state"] == "ready"
    assert found["users"] == [{"pid": os.getpid(), "name": os.path.basename(sys.argv[0])}]
    assert 0 <= found["uptime"] < 60
    assert found["data_bytes"] > 0
    embedded.release()
    wait_until(lambda: status(folder) is None, "the server stops although it is looked at")


def test_the_folder_is_private_and_ignored_by_git(embedded: Embedded, folder: Path) -> None:
    embedded.ensure()
    assert (folder / ".gitignore").read_text() == "*\n"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "valkey.sock").stat().st_mode & 0o077 == 0


def modes(folder: Path) -> dict[str, int]:
    return {
        str(entry.relative_to(folder)): entry.lstat().st_mode & 0o077
        for entry in (folder, *folder.rglob("*"))
        if entry.name != ".gitignore"
    }


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_no_other_user_can_read_the_data(embedded: Embedded, folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        embedded.ensure()
        found = modes(folder)
    finally:
        os.umask(before)
    assert any(name.startswith("appendonlydir/") for name in found)
    assert set(found.values()) == {0}, found


def test_an_open_folder_of_before_is_tightened(embedded: Embedded, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "appendonlydir"
    data.mkdir()
    old = data / "appendonly.aof.1.incr.aof"
    old.write_bytes(b"")
    for entry, mode in ((folder, 0o755), (data, 0o755), (old, 0o644)):
        entry.chmod(mode)
    embedded.ensure()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert set(modes(folder).values()) == {0}


def test_a_folder_with_other_files_keeps_its_mode_and_hides_the_data(
    embedded: Embedded, folder: Path
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "notes.txt").write_text("mine")
    folder.chmod(0o755)
    embedded.ensure()
    assert folder.stat().st_mode & 0o777 == 0o755
    assert (folder / "appendonlydir").stat().st_mode & 0o777 == 0o700
    assert not (folder / "keeper.log").stat().st_mode & 0o077


def test_a_folder_that_others_may_write_to_is_refused(embedded: Embedded, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "notes.txt").write_text("mine")
    folder.chmod(0o777)
    with pytest.raises(EmbeddedServerError, match=r"other users may write to it \(mode 0777\)"):
        embedded.ensure()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(embedded: Embedded, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, 12345, 12345)
    with pytest.raises(EmbeddedServerError, match="belongs to user 12345, and this process runs as user 0"):
        embedded.ensure()


def test_the_log_stays_small(folder: Path) -> None:
    folder.mkdir()
    (folder / "keeper.log").write_bytes(b"x" * (1 << 21))
    embedded = Embedded(folder)
    embedded.ensure()
    assert (folder / "keeper.log").stat().st_size < 1 << 16
    embedded.release(wait=10)


@pytest.mark.parametrize("mark", ["pyproject.toml", ".git", "setup.py", "package.json"])
def test_the_data_folder_is_in_the_nearest_project_root(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OXCART_HOME", raising=False)
    deep = tmp_path / "project" / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "setup.py").write_text("")
    (tmp_path / "project" / mark).mkdir()
    assert data_folder(deep) == tmp_path / "project" / ".oxcart"
    monkeypatch.chdir(deep)
    assert data_folder() == tmp_path / "project" / ".oxcart"


def test_without_a_project_root_the_data_folder_is_right_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OXCART_HOME", raising=False)
    assert data_folder(Path("/nowhere/at/all")) == Path("/nowhere/at/all/.oxcart")


def test_oxcart_home_is_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXCART_HOME", str(tmp_path / "home"))
    assert data_folder(tmp_path) == tmp_path / "home"
    assert Embedded().folder == Path(os.path.realpath(tmp_path / "home"))
