"""A device that gives out addresses and keeps no memory: what a model needs of a device is written down on it, with no GPU. It
runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from executor.base.errors import DeviceError
from executor.device.allocations import ALIGNMENT
from executor.device.gate import Gate
from executor.device.loans import Loan
from executor.device.parameters import ParameterBlock
from executor.device.protocol import BytesCopied, Event, Grid, LoadedKernel, Memory, Node, ReadInto
from ptxgen.target import Target


class PaperDevice:
    """See protocol.Device. `contents` holds, by pointer, what was put into memory that `alloc` gave; what `place` is told of
    is never read. What would need a machine is a DeviceError."""

    kind: Literal["cuda", "emulator"] = "emulator"
    stream = None
    dlpack_device = (1, 0)
    wants_lines = False
    build = "paper"

    def __init__(self, target: Target) -> None:
        self.target = target
        self.name = f"paper ({target})"
        self.reason = ""
        self.frees = 0
        self.waits = 0
        self.closed = False
        self.gate = Gate(self.name)
        self.contents: dict[int, NDArray[Any]] = {}
        self._next = ALIGNMENT

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "target": str(self.target)}

    def memory(self) -> Memory:
        return Memory(0, 0, self._next - ALIGNMENT)

    def alloc(self, nbytes: int, name: str = "") -> int:
        pointer = self._next
        self._next += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return pointer

    def free(self, pointer: int, ticket: int | None = None) -> None:
        self.frees += 1

    def ticket(self, pointer: int) -> int | None:
        return pointer  # none is given out twice

    def mark(self) -> int:
        return self._next

    def free_since(self, mark: int) -> None:
        self.frees += 1

    def place(self, nbytes: int, read: ReadInto, name: str = "") -> int | None:
        return self.alloc(nbytes, name)

    def lend(self, loan: Loan) -> None:
        self._refuse("uses no memory of others")

    def end_loan(self, loan: Loan) -> None:
        return

    def hold(self, pointer: int) -> object:
        self._refuse("has no memory to share")

    def note_write(self, pointer: int, nbytes: int) -> None:
        self._refuse("has no memory that others could write")

    def wait_for(self, stream: int) -> None:
        return

    def let_wait(self, stream: int) -> None:
        return

    def upload(self, pointer: int, array: NDArray[Any], progress: BytesCopied | None = None) -> None:
        self.contents[pointer] = array.copy()
        if progress is not None:
            progress(array.nbytes)

    def upload_from(self, pointer: int, nbytes: int, read: ReadInto, progress: BytesCopied | None = None) -> None:
        self._refuse("reads nothing")

    def fill(self, pointer: int, nbytes: int, byte: int = 0) -> None:
        self.contents[pointer] = np.full(nbytes, byte, np.uint8)

    def download(self, pointer: int, array: NDArray[Any]) -> None:
        self._refuse("holds nothing to download")

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        self._refuse("holds nothing to copy")

    def compile(self, text: str) -> bytes | None:
        return None

    def load(
        self, text: str, entry: str, image: bytes | None = None, cache_dir: Path | None = None
    ) -> tuple[LoadedKernel, bool]:
        return LoadedKernel(entry, None), False

    def unload(self, kernel: LoadedKernel) -> None:
        return

    def launch(
        self, kernel: LoadedKernel, grid: Grid, block: Grid, parameters: ParameterBlock, work: object | None = None
    ) -> None:
        self._refuse(f"cannot launch {kernel.entry}")

    def make_graph(self, nodes: Sequence[Node], *, timed: bool = False) -> Any:
        self._refuse("cannot run a graph")

    def launch_graph(self, graph: Any, work: object | None = None) -> None:
        self._refuse("cannot run a graph")

    def graph_events(self, graph: Any) -> Sequence[Event]:
        self._refuse("has no time")

    def free_graph(self, graph: Any) -> None:
        self._refuse("cannot run a graph")

    def record(self) -> Event:
        self._refuse("has no time")

    def elapsed(self, start: Event, end: Event) -> float:
        self._refuse("has no time")

    def synchronize(self) -> None:
        return

    def close(self) -> None:
        self.closed = True
        self.frees += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse(self, why: str) -> NoReturn:
        raise DeviceError(f"{self.name} {why}; it only writes down what a model needs")
