"""A headless Chromium that tests can talk to: pages, keys, the console, print and pictures, over
its debugging pipe (no port, no dependency).
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ecrl_cli.linux.prerequisites import program

CHROMIUM = program("chromium") or None
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ),
    *(
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--remote-debugging-pipe",
    ),
)
# Chromium reads commands from descriptor 3 and answers on 4.
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4);"
    " os.execv(sys.argv[3], sys.argv[3:])"
)
PATIENCE = 60.0  # seconds for an answer
KEYS = {
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "Tab": (9, ""),
    "ArrowRight": (39, ""),
    "ArrowLeft": (37, ""),
    "End": (35, ""),
    "Home": (36, ""),
}


class Chromium:
    """The browser's end of the pipe. Use as `with chromium() as browser`."""

    def __init__(self, profile: str) -> None:
        theirs, ours = _high_pipe()
        mine, yours = _high_pipe()
        command = [
            sys.executable,
            "-c",
            LAUNCH,
            str(theirs),
            str(yours),
            str(CHROMIUM),
            *FLAGS,
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        environment = {**os.environ, "HOME": profile}
        silent = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command,
            pass_fds=(theirs, yours),
            env=environment,
            stdin=silent,
            stdout=silent,
            stderr=silent,
        )
        os.close(theirs)
        os.close(yours)
        self.to, self.back = ours, mine
        self.left, self.number = b"", 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """The result of a command; RuntimeError with what the browser said against it."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def read(self) -> dict[str, Any]:
        """The next message; an event is kept too."""
        until = time.monotonic() + PATIENCE
        while b"\0" not in self.left:
            ready, _, _ = select.select([self.back], [], [], max(0.0, until - time.monotonic()))
            got = os.read(self.back, 1 << 20) if ready else b""
            if not got:
                raise RuntimeError("chromium does not answer" if not ready else "chromium is gone")
            self.left += got
        text, _, self.left = self.left.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def close(self) -> None:
        with contextlib.suppress(RuntimeError, OSError):
            self.call("Browser.close")
        for end in (self.to, self.back):
            os.close(end)
        self.process.wait(timeout=PATIENCE)

    def open(
        self,
        address: str,
        width: int = 1200,
        height: int = 900,
        *,
        media: dict[str, str] | None = None,
    ) -> Tab:
        """A new tab that has loaded `address`. `media`: such as {"prefers-color-scheme":
        "dark"}.
        """
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable", session)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            session,
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": name, "value": value} for name, value in (media or {}).items()]
        self.call("Emulation.setEmulatedMedia", session, features=features)
        tab = Tab(self, session, target)
        self.call("Page.navigate", session, url=address)
        tab.wait_for("Page.loadEventFired")
        return tab


class Tab:
    """One page."""

    def __init__(self, browser: Chromium, session: str, target: str) -> None:
        self.browser, self.session, self.target = browser, session, target

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def wait_for(self, event: str) -> None:
        while not any(
            found["method"] == event and found.get("sessionId") == self.session
            for found in self.browser.events
        ):
            self.browser.read()

    def run(self, script: str) -> Any:
        """The value of an expression; RuntimeError where it throws."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(
                json.dumps(
                    found["exceptionDetails"]
                    .get("exception", {})
                    .get("description", found["exceptionDetails"])
                )
            )
        return found["result"].get("value")

    def press(self, *keys: str) -> None:
        """Keys by name, or single characters that are typed."""
        for key in keys:
            code, text = KEYS.get(key, (ord(key.upper()), key) if len(key) == 1 else (0, ""))
            shared = {"key": key, "windowsVirtualKeyCode": code}
            self.call(
                "Input.dispatchKeyEvent",
                type="keyDown",
                **shared,
                **({"text": text} if text else {}),
            )
            self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    def point(self, selector: str) -> tuple[float, float]:
        """Move the pointer over the middle of the first element of `selector`, scrolled into view;
        gives where that is.
        """
        box = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center', behavior: 'instant'});"
        )
        at = self.run(
            box
            + " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height /"
            " 2]; })()"
        )
        self.await_two_frames()
        self.move(at[0], at[1])
        return at[0], at[1]

    def move(self, x: float, y: float) -> None:
        """Move the pointer there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def await_two_frames(self) -> None:
        """Two frames later: what a script has set off is drawn."""
        self.run(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>"
            " done(true))))"
        )

    def picture(self) -> bytes:
        """What is to be seen, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def printed(self) -> bytes:
        """As PDF on A4."""
        return base64.b64decode(
            self.call(
                "Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True
            )["data"]
        )

    def complaints(self) -> list[str]:
        """What stands in the console: errors, warnings, refusals of the security policy."""
        self.run("0")  # whatever was said before has arrived
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        mine = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [json.dumps(event["params"])[:400] for event in mine if event["method"] in kinds]

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self.target)


@contextlib.contextmanager
def chromium() -> Iterator[Chromium]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Chromium(profile)
        try:
            yield browser
        finally:
            browser.close()


def _high_pipe() -> tuple[int, int]:
    """A pipe whose ends are out of the way of 3 and 4."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def address(page: Path, query: str = "") -> str:
    return page.as_uri() + (f"#{query}" if query else "")
