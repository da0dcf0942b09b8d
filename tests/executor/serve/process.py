"""A real `ptxrun serve` on loopback, from its start to its end. No test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

STARTED = "from ptxgen.commands.start import ptxrun; ptxrun()"


class ServerProcess:
    """`ptxrun serve MODEL --device DEVICE --port 0` with more words, until the block ends. `url`: where it listens."""

    def __init__(
        self,
        model: Path,
        cache: Path,
        *words: object,
        device: str = "emulator",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        command = [sys.executable, "-c", STARTED, "serve", str(model), "--device", device, "--port", "0", *map(str, words)]
        env = os.environ | {"PTXGEN_CACHE_DIR": str(cache), "PTXGEN_BATCH_INVARIANT": "1"} | dict(environment or {})
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env, restore_signals=True)
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = self._listening()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.said.extend(iter(self.process.stderr.readline, ""))

    def _listening(self) -> str:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(r"listening on (http://\S+): ", "".join(self.said))
            if found:
                return found[1]
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError(f"it does not listen: {''.join(self.said)}")

    def end(self, number: int = signal.SIGTERM, seconds: float = 60) -> int:
        """Send a signal; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(seconds)
        self._reader.join(10)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        if error is not None:
            sys.stderr.write("".join(self.said))
