"""A headless Chromium, driven over its own DevTools pipe: just enough to open a page, act on it and look at it."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60  # seconds; a busy machine starts a browser slowly


def find_chromium() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one tab. Use it as a context manager.

    Attributes:
        complaints: what the page wrote to its console, errors that it did not catch, and what it tried to load.
    """

    def __init__(self, program: str) -> None:
        self.complaints: list[str] = []
        self._number = 0
        self._unread = b""
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        arguments = [
            program,
            "--headless=new",
            "--no-sandbox",  # which root cannot have; the pages are our own
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._profile.name}",
            "about:blank",
        ]
        # Chromium reads commands from descriptor 3 and answers on 4
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "chromium", *arguments],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._session: str | None = None
        tab = next(t for t in self._call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=tab["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._session = None
            self._call("Browser.close")
            self._process.wait(timeout=PATIENCE)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def open(self, page: Path, *, width: int = 1100, height: int = 800, dark: bool = False) -> None:
        """Open a file in a window of this size, and wait until it has been drawn."""
        self.complaints.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._call("Page.navigate", url=page.resolve().as_uri())
        self.run("new Promise(done => document.readyState == 'complete' ? done() : addEventListener('load', done))")
        self.settle()

    def settle(self) -> None:
        """Wait for two frames: what was asked for has been drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is waited for."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']['exception']['description']}")
        return answer["result"].get("value")

    def point(self, x: float, y: float) -> None:
        """Move the mouse to a place in the window."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def click(self, selector: str) -> None:
        """Bring an element into view and click its middle with the mouse."""
        x, y = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            f" return [b.x + b.width / 2, b.y + b.height / 2]; }})(document.querySelector({json.dumps(selector)}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self._call("Input.insertText", text=text)
        self.settle()

    def press(self, key: str) -> None:
        """Press and release a key, by its DOM name."""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key)
        self.settle()

    def screenshot(self) -> bytes:
        """Return the whole page as a PNG."""
        picture = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(picture["data"])

    def pdf(self) -> bytes:
        """Return the page as it prints."""
        return base64.b64decode(self._call("Page.printToPDF", printBackground=False)["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._unread:
            if not select.select([self._read], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            if not (received := os.read(self._read, 1 << 20)):
                raise OSError("Chromium has ended")
            self._unread += received
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, details = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(details["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console.{details['type']}: {details['args']}")
        elif method == "Log.entryAdded":
            self.complaints.append(f"{details['entry']['level']}: {details['entry']['text']}")
        elif method == "Network.requestWillBeSent" and not details["request"]["url"].startswith(("file:", "data:")):
            self.complaints.append(f"request: {details['request']['url']}")
