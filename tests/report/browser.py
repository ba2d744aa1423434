"""A headless Chromium for tests, over the pipe of its DevTools protocol: nothing to install beside it, nothing it may fetch."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"]
SECONDS = 120


def executable() -> str | None:
    """Where Chromium is, or None."""
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


class Page:
    """One tab. `events` are what it has said of the network, of the console and of exceptions."""

    def __init__(self, to: int, back: int) -> None:
        self.to, self.back, self.number, self.rest = to, back, 0, b""
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params} | ({"sessionId": self.session} if self.session else {})
        os.write(self.to, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
        raise AssertionError("the browser has gone")

    def wait_for(self, event: str) -> None:
        if not any(known["method"] == event for known in self.events):
            next(message for message in self._messages() if message.get("method") == event)

    def _messages(self) -> Iterator[dict[str, Any]]:
        while True:
            while b"\0" not in self.rest:
                more = os.read(self.back, 1 << 16)
                if not more:
                    return
                self.rest += more
            text, _, self.rest = self.rest.partition(b"\0")
            message = json.loads(text)
            if "method" in message:
                self.events.append(message)
            yield message

    def show(self, url: str, width: int, height: int, *, dark: bool = False, media: str = "screen") -> None:
        """Loads a page in a window of this size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """What the window shows, or the whole page."""
        image = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **({"clip": self._all()} if whole else {}))
        path.write_bytes(base64.b64decode(image["data"]))

    def _all(self) -> dict[str, float]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def requests(self) -> list[str]:
        return [event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Errors of the console, exceptions, and what is logged as wrong."""
        kinds = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [json.dumps(event["params"])[:500] for event in self.events if event["method"] in kinds]


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """`profile`: a folder of its own."""
    program = executable()
    assert program is not None
    their_in, to = os.pipe()
    back, their_out = os.pipe()

    def as_three_and_four() -> None:
        first, second = os.dup(their_in), os.dup(their_out)  # 3 and 4 may be what is to be copied
        os.dup2(first, 3)
        os.dup2(second, 4)

    process = subprocess.Popen(
        [program, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
        preexec_fn=as_three_and_four,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_in)
    os.close(their_out)
    try:
        yield Page(to, back)
    finally:
        os.close(to)
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(back)
