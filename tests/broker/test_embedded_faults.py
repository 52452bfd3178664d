"""The embedded server when something is killed, removed, forbidden or oddly named."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis

from oxcart.broker import _hold
from oxcart.broker.embedded import Embedded, EmbeddedServerError, status
from oxcart.broker.location import Location
from tests.broker.folder_users import Users, assert_nothing_left, client, is_gone, kill, pids, processes
from tests.servers import wait_until

pytestmark = pytest.mark.slow

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
    killer = threading.Thread(target=os.kill, args=(pids(folder)[0], signal.SIGKILL))
    with contextlib.suppress(redis.ConnectionError):
        while True:
            written = int(link.incr("count"))
            if written == 200:
                killer.start()
    killer.join()
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


def test_a_server_killed_while_it_starts_is_started_again(folder: Path, users: Users) -> None:
    user = users(folder, wait=False)
    wait_until(lambda: (status(folder) or {}).get("server_pid"), "the server is being started")
    server = pids(folder)[1]
    kill(server)
    assert user.answer() == "ready"
    assert user.ask("call", "DBSIZE") == 0
    assert pids(folder)[1] != server


def test_a_terminated_keeper_stops_its_server_and_users_start_another(
    embedded: Embedded, folder: Path
) -> None:
    with client(embedded.ensure()) as link:
        link.set("word", "hello")
    known = pids(folder)
    os.kill(known[0], signal.SIGTERM)
    wait_until(lambda: not embedded.is_attached, "the keeper has announced its stop")
    with client(embedded.ensure()) as link:
        assert link.get("word") == "hello"
    wait_until(lambda: all(is_gone(pid) for pid in known), "the old processes have ended")


def test_server_starts_over_leftovers_of_a_killed_keeper(embedded: Embedded, folder: Path) -> None:
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
    try:
        client(place, socket_timeout=0.1).ping()
    except (redis.TimeoutError, redis.ResponseError):
        return True
    return False


def test_a_removed_folder_is_created_again(embedded: Embedded, folder: Path) -> None:
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
            client(place, password=None).ping()
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


def test_a_folder_that_can_have_no_sockets_is_served_over_loopback(folder: Path, users: Users) -> None:
    (folder / "keeper.sock").mkdir(parents=True)
    first, second = users(folder), users(folder)
    first.ask("call", "SET", "word", "hello")
    assert second.ask("call", "GET", "word") == "hello"
    found = status(folder)
    assert found is not None
    assert found["location"].kind == "standalone"
    assert len(found["users"]) == 2


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
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=60)
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
