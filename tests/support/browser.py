"""A headless Chromium that a test steers: opens a page, moves the mouse, presses keys, and knows what the page asked of
the network and complained of. Spoken to over a pair of pipes in the DevTools protocol, so no library and no port."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WAIT_S = 60.0
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--proxy-server=127.0.0.1:9",
)  # fmt: skip
"""No request can reach anybody: the proxy is not there."""


def browser() -> str:
    """A Chromium; where there is none the test is skipped, unless REQUIRE_BROWSER is set."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        assert not os.environ.get("REQUIRE_BROWSER"), "there is no Chromium"
        pytest.skip("there is no Chromium")
    return found


class Browser:
    """One page in a Chromium of its own, whose profile lies in `folder`. `requests`: addresses it asked for, but for
    `data:`; `complaints`: exceptions, and errors and warnings of its console."""

    def __init__(self, folder: Path, width: int = 1200, height: int = 1400, *, dark: bool = False) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._folder, self._size, self._dark = folder, (width, height), dark
        self._ids, self._session, self._rest = 0, "", b""
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        low = (*os.pipe(), *os.pipe())
        theirs, self._out, self._in, their_out = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)

        def as_three_and_four() -> None:
            os.dup2(theirs, 3)
            os.dup2(their_out, 4)

        command = [browser(), *ARGUMENTS, "--remote-debugging-pipe", f"--user-data-dir={self._folder / 'profile'}"]
        self._process = subprocess.Popen(
            [*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            preexec_fn=as_three_and_four,
        )  # fmt: skip
        for end in (*low, theirs, their_out):  # until now `low` kept 3 and 4 from being anything else
            os.close(end)
        targets = self.send("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        width, height = self._size
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self._dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(timeout=WAIT_S)
        os.close(self._out)
        os.close(self._in)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command of the DevTools protocol."""
        self._ids += 1
        message = {"id": self._ids, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            got = self._receive()
            if got.get("id") == self._ids:
                assert "error" not in got, got["error"]
                result: dict[str, Any] = got["result"]
                return result

    def open(self, page: Path | str, *, scripts: bool = True) -> None:
        """Loads a file or an address of this machine, up to its `load` event."""
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._events.clear()
        self.send("Page.navigate", url=page.as_uri() if isinstance(page, Path) else page)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page, after its next frame."""
        frame = "new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
        told = f"{frame}.then(() => ({expression}))"
        result = self.send("Runtime.evaluate", expression=told, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def place(self, selector: str, number: int = 0) -> tuple[float, float, float, float]:
        """Left, top, width and height of an element, once it is in view."""
        found = f"document.querySelectorAll({json.dumps(selector)})[{number}]"
        self.ask(f"{found}.scrollIntoView({{block: 'center'}})")
        box = self.ask(f"(({{x, y, width, height}}) => [x, y, width, height])({found}.getBoundingClientRect())")
        return box[0], box[1], box[2], box[3]

    def click(self, selector: str, number: int = 0, *, times: int = 1) -> None:
        """Clicks into the middle of an element."""
        left, top, width, height = self.place(selector, number)
        for count in range(1, times + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self._mouse(kind, left + width / 2, top + height / 2, clickCount=count)

    def drag(self, selector: str, start: float, end: float, *, modifiers: int = 0) -> None:
        """Drags in the middle of an element, from one part of its width (0 to 1) to another."""
        left, top, width, height = self.place(selector)
        y = top + height / 2
        self._mouse("mouseMoved", left + width * start, y, button="none")
        self._mouse("mousePressed", left + width * start, y, modifiers=modifiers)
        for step in range(1, 6):
            self._mouse("mouseMoved", left + width * (start + (end - start) * step / 5), y, modifiers=modifiers)
        self._mouse("mouseReleased", left + width * end, y, modifiers=modifiers)

    def press(self, key: str) -> None:
        """Presses a key where the focus is."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A PNG of what is seen, or of the whole page."""
        self.ask("0")
        content = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(content))

    def _mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        given = {"button": "left", "buttons": 1, "clickCount": 1} | more
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **given)

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + WAIT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0, until - time.monotonic()))
            part = os.read(self._in, 1 << 20) if ready else b""
            assert part, "the browser ended" if ready else f"no answer of the browser in {WAIT_S:g} s"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self._note(message)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        method, params = event["method"], event["params"]
        if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith("data:"):
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif (method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert")) or (
            method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning")
        ):
            self.complaints.append(json.dumps(params))
