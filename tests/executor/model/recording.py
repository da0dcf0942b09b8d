"""An emulator that remembers in which order steps were started and their tokens were read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from executor.device.emulated import EmulatedDevice
from executor.device.protocol import Fetch, ReadInto

Compare = Callable[[Callable[[], object]], None]
"""Compares what something gives in several ways."""


class Recording(EmulatedDevice):
    """`order` holds what was started and what was read: `step`, `read` a token."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.order: list[str] = []

    def alloc_read_only(self, nbytes: int, read: ReadInto, name: str = "") -> None:
        """As on a GPU: weights are copied, and may be written."""

    def launch_graph(self, graph: Any, work: object | None = None) -> None:
        self.order.append("step")
        super().launch_graph(graph, work)

    def download(self, pointer: int, array: NDArray[Any]) -> None:
        self.order.append("read")
        super().download(pointer, array)

    def fetch(self, pointer: int, array: NDArray[Any]) -> Fetch:
        fetch, order = super().fetch(pointer, array), self.order

        class Read(Fetch):
            def to_numpy(self) -> NDArray[Any]:
                order.append("read")
                return fetch.to_numpy()

        return Read()
