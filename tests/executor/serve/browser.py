"""A headless Chromium that is told what to do through a pipe, in Chrome's DevTools protocol. No test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

START = (
    "import fcntl, os, sys; r, w = (fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]); os.dup2(r, 3); "
    "os.dup2(w, 4); os.execvp(sys.argv[3], sys.argv[3:])"
)
"""The browser reads commands from 3 and writes answers to 4, whatever numbers our ends have."""


def found() -> str:
    """A browser on PATH; without one the test is skipped."""
    program = next((program for name in BROWSERS if (program := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser to look at the page with: none of {', '.join(BROWSERS)} is on PATH")
    return program


class Browser:
    """One page, until the block ends. `said`: what it wrote to its console."""

    def __init__(self, profile: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        command = [
            found(), "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}",
            "--disable-dev-shm-usage", "--no-first-run", "about:blank",
        ]  # fmt: skip
        start = [sys.executable, "-c", START, str(to_read), str(to_write)]
        log = (profile / "log").open("wb")
        self.process = subprocess.Popen([*start, *command], pass_fds=(to_read, to_write), stdout=log, stderr=log)
        for end in (to_read, to_write):
            os.close(end)
        self._held = b""
        self._number = 0
        self.said: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> Any:
        """Have the page do something; what comes back."""
        return self._ask(method, self._session, **parameters)

    def value(self, expression: str) -> Any:
        """Of an expression in the page, when it has one if it is a promise."""
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 60) -> Any:
        """Until an expression is true; its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.value(expression)):
            assert time.monotonic() < deadline, f"{expression}; {self.value('document.body.innerText')!r}; {self.said}"
            time.sleep(0.05)
        return value

    def open(self, url: str) -> None:
        """Load a page."""
        self.ask("Page.navigate", url=url)
        self.wait_for(f"document.readyState == 'complete' && location.href.startsWith({json.dumps(url)})")

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.ask("Input.insertText", text=text)

    def press_enter(self) -> None:
        """The key."""
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **key)

    def _ask(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._write, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") in ("Runtime.consoleAPICalled", "Log.entryAdded", "Runtime.exceptionThrown"):
                self.said.append(json.dumps(answer["params"]))

    def _next(self) -> Any:
        while b"\0" not in self._held:
            data = os.read(self._read, 1 << 16)
            assert data, "the browser has gone"
            self._held += data
        message, _, self._held = self._held.partition(b"\0")
        return json.loads(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._read)
        os.close(self._write)
