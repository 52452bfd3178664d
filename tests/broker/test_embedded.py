"""The embedded server: who starts it, who joins it, and that it never outlives its users."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from oxcart.broker import _hold
from oxcart.broker.embedded import Embedded, EmbeddedServerError, data_folder, status
from oxcart.broker.location import Location
from oxcart.model.errors import ValidationError
from tests.servers import wait_until

#: A process that uses a folder and does as it is told on stdin.
USER = """
import json, os, sys
from oxcart.broker.embedded import Embedded
embedded = Embedded(sys.argv[1])

def client():
    import redis
    place = embedded.ensure()
    if place.path:
        return redis.Redis(unix_socket_path=place.path, decode_responses=True)
    host, port = place.hosts[0]
    return redis.Redis(host=host, port=port, password=place.password, decode_responses=True)

def answer(value):
    print(json.dumps([os.getpid(), value]), flush=True)

embedded.ensure()
answer("ready")
for line in sys.stdin:
    command, *words = line.split()
    if command == "call":
        answer(client().execute_command(*words))
    elif command == "attached":
        answer(embedded.is_attached)
    elif command == "fork":
        if os.fork() == 0:
            answer(["attached", embedded.is_attached])
            client().set("child", "was here")
            answer("forked")
            os.read(int(words[0]), 1)
            os._exit(0)
"""


class UserProcess:
    """A process of its own that uses the folder."""

    def __init__(self, folder: Path, wait: bool = True, pass_fds: tuple[int, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
        )
        if wait:
            assert self.answer() == "ready"

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the user process ended"
        return json.loads(line)[1]

    def ask(self, *words: object) -> Any:
        self.tell(*words)
        return self.answer()

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(20)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Users:
    """Starts user processes and ends them after the test."""

    def __init__(self) -> None:
        self._all: list[UserProcess] = []

    def __call__(self, folder: Path, wait: bool = True, pass_fds: tuple[int, ...] = ()) -> UserProcess:
        user = UserProcess(folder, wait, pass_fds)
        self._all.append(user)
        return user

    def close(self) -> None:
        for user in self._all:
            user.close()


@pytest.fixture
def users() -> Iterator[Users]:
    users = Users()
    yield users
    users.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's own folder: its path is so long that every test would run over loopback.
    with tempfile.TemporaryDirectory(prefix="oxcart-") as place:
        path = Path(os.path.realpath(place)) / "data"
        yield path
        wait_until(lambda: not processes(path), "the last test's processes have ended")


@pytest.fixture
def embedded(folder: Path) -> Iterator[Embedded]:
    embedded = Embedded(folder)
    yield embedded
    embedded.release(wait=10)


def processes(folder: Path) -> list[int]:
    """The processes that run in the folder or were started for it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
            here = os.readlink(entry / "cwd").removesuffix(" (deleted)") == str(folder)
            words = entry.joinpath("cmdline").read_bytes().split(b"\0")
            if here or (os.fsencode(folder) in words and b"-c" not in words):
                found.append(int(entry.name))
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def kill(pid: int) -> None:
    """SIGKILL, and wait until the kernel has cleared the process away."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid), f"{pid} has ended")


def pids(folder: Path) -> tuple[int, int]:
    """The pids of keeper and server."""
    found = status(folder)
    assert found is not None
    return found["keeper_pid"], found["server_pid"]


def client(place: Location) -> redis.Redis:
    if place.path:
        return redis.Redis(unix_socket_path=place.path, decode_responses=True)
    host, port = place.hosts[0]
    return redis.Redis(host=host, port=port, password=place.password, decode_responses=True)


def assert_nothing_left(folder: Path, *known: int) -> None:
    wait_until(lambda: all(is_gone(pid) for pid in known), f"{known} have ended", 15)
    wait_until(lambda: not processes(folder) and status(folder) is None, f"nothing is left for {folder}", 15)


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
    # What it forked may not show yet which program it will be.
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
        # By turns: the very moment it was told to stop, when it has closed its door, when the linger ends.
        embedded.release(wait=0.001 if count % 3 else 0)
        if count % 3 == 2:
            wait_until(lambda: not (folder / "keeper.sock").exists(), "the keeper is stopping")
        elif count % 3 == 0:
            time.sleep(0.49 + count / 1000)
    embedded.release(wait=10)
    assert_nothing_left(folder)
    assert len(seen) > 12


def test_releasing_with_a_wait_stops_the_server_before_it_returns(embedded: Embedded, folder: Path) -> None:
    embedded.ensure()
    known = pids(folder)
    embedded.release(wait=10)
    wait_until(lambda: all(is_gone(pid) for pid in known), "both have ended", 0.5)
    attached: bool = embedded.is_attached
    assert not attached


def test_releasing_with_a_wait_leaves_the_server_to_others(
    embedded: Embedded, folder: Path, users: Users
) -> None:
    other = users(folder)
    embedded.ensure()
    began = time.monotonic()
    embedded.release(wait=10)
    assert time.monotonic() - began < 5
    assert other.ask("call", "PING") == "PONG" or other.ask("attached")


def test_a_starter_is_left_with_no_child_to_wait_for(embedded: Embedded) -> None:
    embedded.ensure()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    embedded.release(wait=10)


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


async def test_the_event_loop_goes_on_while_the_server_starts(embedded: Embedded) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    ticker = asyncio.create_task(tick())
    place = await embedded.ensure_async()
    ticker.cancel()
    assert ticks > 3
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


# --- when something is killed ---------------------------------------------------------------------


def test_users_come_back_together_after_the_keeper_was_killed(folder: Path, users: Users) -> None:
    one, other = users(folder), users(folder)
    one.ask("call", "SET", "word", "hello")
    keeper, server = pids(folder)
    kill(keeper)
    one.tell("call", "GET", "word")
    other.tell("call", "GET", "word")
    assert (one.answer(), other.answer()) == ("hello", "hello")
    wait_until(lambda: is_gone(keeper) and is_gone(server), "the old server has ended")
    assert len(processes(folder)) == 2
    assert one.ask("attached")
    assert other.ask("attached")


def test_nothing_acknowledged_is_lost_when_the_keeper_is_killed(embedded: Embedded, folder: Path) -> None:
    written = 0
    link = client(embedded.ensure())
    killer = threading.Timer(0.2, os.kill, (pids(folder)[0], signal.SIGKILL))
    killer.start()
    with contextlib.suppress(redis.ConnectionError):
        while True:
            written = int(link.incr("count"))
    killer.join()
    assert written > 100
    with client(embedded.ensure()) as again:
        assert int(again.get("count") or 0) >= written


def test_the_keeper_starts_a_killed_server_again(embedded: Embedded, folder: Path, users: Users) -> None:
    other = users(folder)
    with client(embedded.ensure()) as link:
        link.set("word", "hello")
    keeper, server = pids(folder)
    kill(server)
    wait_until(lambda: pids(folder)[1] != server, "there is a new server")
    with client(embedded.ensure()) as link:
        assert link.get("word") == "hello"
    assert pids(folder)[0] == keeper
    assert (status(folder) or {})["generation"] == 2
    assert other.ask("call", "GET", "word") == "hello"


def test_a_terminated_keeper_stops_its_server_and_users_start_another(
    embedded: Embedded, folder: Path
) -> None:
    with client(embedded.ensure()) as link:
        link.set("word", "hello")
    known = pids(folder)
    os.kill(known[0], signal.SIGTERM)
    wait_until(lambda: not embedded.is_attached, "the keeper has said that it stops")
    with client(embedded.ensure()) as link:
        assert link.get("word") == "hello"
    wait_until(lambda: all(is_gone(pid) for pid in known), "the old processes have ended")


def test_what_a_killed_keeper_and_server_leave_is_no_hindrance(embedded: Embedded, folder: Path) -> None:
    with client(embedded.ensure()) as link:
        link.set("word", "hello")
    for pid in pids(folder):
        kill(pid)
    wait_until(lambda: not processes(folder), "both have ended")
    assert (folder / "server.json").exists()
    with next((folder / "appendonlydir").glob("*.incr.aof")).open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$4\r\nwo")  # a command that was being written
    with client(embedded.ensure()) as link:
        assert link.get("word") == "hello"


def test_a_server_that_outlives_its_keeper_is_killed(embedded: Embedded, folder: Path) -> None:
    place = embedded.ensure()
    keeper, server = pids(folder)
    busy = threading.Thread(target=_run_endless_script, args=(place,))
    busy.start()
    wait_until(lambda: _is_busy(place), "the server runs the script")
    kill(keeper)
    with client(embedded.ensure()) as link:
        assert link.ping()
    assert is_gone(server)
    busy.join()


def _run_endless_script(place: Location) -> None:
    with contextlib.suppress(redis.RedisError), client(place) as link:
        link.eval("redis.call('SET', KEYS[1], 1) while true do end", 1, "k")


def _is_busy(place: Location) -> bool:
    host: dict[str, Any] = {"unix_socket_path": place.path}
    try:
        redis.Redis(**host, socket_timeout=0.1).ping()
    except (redis.TimeoutError, redis.ResponseError):
        return True
    return False


def test_a_removed_folder_is_made_anew(embedded: Embedded, folder: Path) -> None:
    embedded.ensure()
    known = pids(folder)
    shutil.rmtree(folder)
    wait_until(lambda: not embedded.is_attached, "the keeper has noticed")
    with client(embedded.ensure()) as link:
        assert link.dbsize() == 0
    wait_until(lambda: all(is_gone(pid) for pid in known), "the old processes have ended")
    assert len(processes(folder)) == 2


def test_a_removed_socket_does_not_lock_anyone_out(embedded: Embedded, folder: Path, users: Users) -> None:
    embedded.ensure()
    (folder / "keeper.sock").unlink()
    assert users(folder).ask("call", "PING") in ("PONG", True)
    embedded.ensure()
    assert len(processes(folder)) == 2


# --- unusual places -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["with space", "ünï-漢字-🐂", "quo'te\"d", "-dash", "new\nline", "per%20cent"]
)
def test_any_folder_name_will_do(folder: Path, name: str) -> None:
    embedded = Embedded(folder / name)
    try:
        with client(embedded.ensure()) as link:
            assert link.ping()
        assert (folder / name / "appendonlydir").is_dir()
    finally:
        embedded.release(wait=10)
    wait_until(lambda: not processes(folder / name), "nothing is left")


def test_a_path_too_long_for_a_socket_leads_over_loopback_with_a_password(folder: Path, users: Users) -> None:
    long = folder / ("x" * 90) / ("y" * 90)
    embedded = Embedded(long)
    try:
        place = embedded.ensure()
        assert place.kind == "standalone"
        assert place.hosts[0][0] == "127.0.0.1"
        with client(place) as link:
            link.set("word", "hello")
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=place.hosts[0][1]).ping()
        other = users(long)
        assert other.ask("call", "GET", "word") == "hello"
        assert place.password
        for pid in processes(long):
            assert place.password not in Path(f"/proc/{pid}/cmdline").read_text()
        assert (long / "server.json").stat().st_mode & 0o077 == 0

        kill(pids(long)[0])
        with client(embedded.ensure()) as link:
            assert link.get("word") == "hello"
        assert other.ask("call", "GET", "word") == "hello"
        known = pids(long)
        kill(known[1])
        wait_until(lambda: (status(long) or {}).get("generation") == 2, "the server was started again")
        assert other.ask("call", "GET", "word") == "hello"
        other.end(signal.SIGKILL)
    finally:
        embedded.release(wait=10)
    wait_until(lambda: not processes(long), "nothing is left")


def test_a_folder_that_cannot_be_made_is_a_clear_error(folder: Path) -> None:
    folder.mkdir()
    (folder / "file").write_text("")
    with pytest.raises(
        EmbeddedServerError, match=r"file/data cannot be used: Not a directory; set OXCART_HOME"
    ):
        Embedded(folder / "file" / "data").ensure()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_a_clear_error(folder: Path) -> None:
    folder.mkdir(mode=0o500)
    with pytest.raises(EmbeddedServerError, match="cannot be used: Permission denied; set OXCART_HOME"):
        Embedded(folder).ensure()


def test_data_that_cannot_be_loaded_is_a_clear_error(embedded: Embedded, folder: Path) -> None:
    with client(embedded.ensure()) as link:
        link.set("word", "hello")
    embedded.release(wait=10)
    manifest = next((folder / "appendonlydir").glob("*.manifest"))
    manifest.write_text("nonsense\n")
    with pytest.raises(EmbeddedServerError, match=r"does not start; keeper\.log ends with:\n(.|\n)*manifest"):
        embedded.ensure()
    assert_nothing_left(folder)


def test_a_server_binary_that_does_not_run_is_a_clear_error(
    embedded: Embedded, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OXCART_SERVER_BINARY", "/nonexistent/valkey-server")
    with pytest.raises(EmbeddedServerError, match="No such file or directory: '/nonexistent/valkey-server'"):
        embedded.ensure()
    assert_nothing_left(folder)


def test_a_keeper_that_does_not_run_is_a_clear_error(
    embedded: Embedded, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_hold, "_KEEPER", folder / "missing.py")
    with pytest.raises(EmbeddedServerError, match=r"did not start; see keeper\.log"):
        embedded.ensure()


def test_a_starter_with_odd_signal_settings_gets_an_ordinary_server(folder: Path) -> None:
    code = (
        "import signal, sys; from oxcart.broker.embedded import Embedded\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\n"
        "for n in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT): signal.signal(n, signal.SIG_IGN)\n"
        "Embedded(sys.argv[1]).ensure()"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=30)
    assert_nothing_left(folder)


def test_without_a_parent_death_signal_the_server_still_goes_with_its_keeper(
    embedded: Embedded, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "keeper.py"
    run = f"runpy.run_path({str(_hold._KEEPER)!r}, run_name='__main__')"
    script.write_text(f"import runpy, sys\nsys.platform = 'darwin'\n{run}\n")
    monkeypatch.setattr(_hold, "_KEEPER", script)
    with client(embedded.ensure()) as link:
        link.set("word", "hello")
    keeper, server = pids(folder)
    kill(keeper)
    wait_until(lambda: is_gone(server), "the server has gone too")
    with client(embedded.ensure()) as link:
        assert link.get("word") == "hello"
    embedded.release(wait=10)
    assert_nothing_left(folder)


# --- settings and status --------------------------------------------------------------------------


def test_the_server_keeps_an_append_only_file_and_evicts_nothing(embedded: Embedded) -> None:
    with client(embedded.ensure()) as link:
        settings: Any = link.config_get("append*", "maxmemory-policy", "save", "port")
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "everysec"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["save"] == ""
    assert settings["port"] == "0"


def test_the_strictest_wish_for_syncing_holds(folder: Path, users: Users) -> None:
    embedded = Embedded(folder, appendfsync="no")
    try:
        with client(embedded.ensure()) as link:
            assert link.config_get("appendfsync") == {"appendfsync": "no"}
            users(folder)
            wait_until(lambda: link.config_get("appendfsync") == {"appendfsync": "everysec"}, "everysec")
    finally:
        embedded.release(wait=10)


def test_an_unknown_wish_for_syncing_is_refused(folder: Path) -> None:
    with pytest.raises(ValidationError, match="appendfsync must be always, everysec or no, got 'often'"):
        Embedded(folder, appendfsync="often")  # type: ignore[arg-type]


def test_status_tells_what_runs_and_does_not_keep_it(embedded: Embedded, folder: Path) -> None:
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
    wait_until(lambda: status(folder) is None, "the server stops although it is looked at", 5)


def test_the_folder_is_private_and_ignored_by_git(embedded: Embedded, folder: Path) -> None:
    embedded.ensure()
    assert (folder / ".gitignore").read_text() == "*\n"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "valkey.sock").stat().st_mode & 0o077 == 0


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
