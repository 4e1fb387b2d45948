"""Headless Chromium, driven through a pipe by the DevTools protocol: what a person does, and what one then sees.

Messages are JSON that ends in a zero byte, on descriptors 3 and 4 of the browser (``--remote-debugging-pipe``), so the
standard library suffices. Source: https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Generator
from typing import Any, cast

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-proxy-server",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowUp": 38, "ArrowDown": 40}
_TIMEOUT_S = 60.0


class BrowserError(Exception):
    """The browser does not answer, or the page raised an error."""


class Browser:
    """A browser with one page.

    Attributes:
        requests: the URLs that the page asked for.
        faults: errors of scripts, and what the content security policy refused.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._numbers = itertools.count(1)
        self._received = b""
        self._session = ""
        self.requests: list[str] = []
        self.faults: list[str] = []

    def attach(self) -> None:
        """Takes the page that the browser starts with."""
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Opens a page and waits until it is loaded."""
        self._call("Page.navigate", url=url)
        self.wait("document.readyState == 'complete'")

    def see(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression, which may be a promise.

        Raises:
            BrowserError: it raises an error.
        """
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description", details["text"]))
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Waits until an expression is true.

        Raises:
            BrowserError: it does not become true within a minute.
        """
        until = time.monotonic() + _TIMEOUT_S
        while not self.see(f"Boolean({expression})"):
            if time.monotonic() > until:
                text = self.see("document.body ? document.body.innerText : ''")
                raise BrowserError(f"{expression} is not true on the page: {text[:2000]} {self.faults}")
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Clicks in the middle of an element."""
        place = self.see(
            f"(() => {{ const it = document.querySelector({json.dumps(selector)});"
            " it.scrollIntoView({block: 'center'}); const box = it.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Presses and releases a key by its name, such as ``Tab``."""
        code = {"key": key, "windowsVirtualKeyCode": _KEYS[key], "modifiers": 8 * shift}
        text = {"Enter": "\r", " ": " "}.get(key)
        self._call(
            "Input.dispatchKeyEvent",
            type="keyDown" if text else "rawKeyDown",
            **code,
            **({"text": text} if text else {}),
        )
        self._call("Input.dispatchKeyEvent", type="keyUp", **code)

    def write(self, text: str) -> None:
        """Replaces the text of the field that has the focus, as typing does."""
        self.see("document.activeElement.select()")
        if text:
            self._call("Input.insertText", text=text)
        else:
            self._call("Input.dispatchKeyEvent", type="rawKeyDown", key="Delete", windowsVirtualKeyCode=46)

    def size(self, width: int, height: int, scale: float = 1.0) -> None:
        """Gives the page a width and height in pixels."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def prefer(self, scheme: str) -> None:
        """Makes the system's colours ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self) -> bytes:
        """Returns the visible part of the page as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def quit(self) -> None:
        """Ends the browser."""
        self._session = ""
        self._call("Browser.close")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        until = time.monotonic() + _TIMEOUT_S
        while True:
            found = self._receive(until)
            if found.get("id") == number:
                if "error" in found:
                    raise BrowserError(f"{method}: {found['error']['message']}")
                return cast("dict[str, Any]", found["result"])
            self._note(found)

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._from, 1 << 20) if ready else b""
            if not data:
                raise BrowserError("the browser does not answer")
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, values = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = values["exceptionDetails"]
            self.faults.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and values["entry"]["source"] in {"security", "javascript"}:
            self.faults.append(values["entry"]["text"])


@contextlib.contextmanager
def browser() -> Generator[Browser]:
    """Starts Chromium until the end of the block.

    Raises:
        BrowserError: there is none, or it does not start.
    """
    if CHROMIUM is None:
        raise BrowserError("no chromium, chromium-browser or google-chrome on PATH")
    with (
        contextlib.ExitStack() as stack,
        tempfile.TemporaryDirectory(prefix="ziggurat-chromium-", ignore_cleanup_errors=True) as profile,
    ):
        theirs_in, ours_out, ours_in, theirs_out = (
            fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 16) for each in _pipes(stack)
        )
        for each in (ours_out, ours_in):
            stack.callback(os.close, each)
        arguments = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        actions = [
            (os.POSIX_SPAWN_DUP2, theirs_in, 3),
            (os.POSIX_SPAWN_DUP2, theirs_out, 4),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        process = os.posix_spawn(
            CHROMIUM, arguments, {**os.environ, "HOME": profile}, file_actions=actions, setpgroup=0
        )
        os.close(theirs_in)
        os.close(theirs_out)
        found = Browser(ours_out, ours_in)
        try:
            found.attach()
            yield found
        finally:
            with contextlib.suppress(BrowserError, OSError):
                found.quit()
            _end(process)


def _pipes(stack: contextlib.ExitStack) -> list[int]:
    """Returns the ends of two pipes: reading and writing end of the first, then of the second."""
    ends = [*os.pipe(), *os.pipe()]
    for each in ends:
        stack.callback(os.close, each)
    return ends


def _end(process: int) -> None:
    """Waits for the end of a process, and ends its group if it does not come."""
    until = time.monotonic() + 20
    while os.waitpid(process, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return
        time.sleep(0.05)
