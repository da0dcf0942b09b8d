"""A dry run: a model is laid out in memory that is none, and its launches are prepared without being run, to see what it needs
and does on a GPU that need not be there. Weights are not read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from executor.device.allocations import ALIGNMENT
from executor.device.gathers import PEERS, Gathers
from executor.device.gpu import EMULATOR, GpuModel
from executor.device.host_memory import HostMemory
from executor.device.protocol import Device, Grid, LoadedKernel, Node, ReadInto
from ptxgen.gpus.gpu import Gpu
from ptxgen.target import MAX_GRID, Target


class DryRunMemory(HostMemory):
    """Addresses without memory until the host writes there: an allocation takes room when it is first written, and
    read-only memory is read when it is first looked at."""

    sharing = None

    def __init__(self, ranks: int = 1, gathers: Gathers = PEERS) -> None:
        """ranks: it is the memory of one of so many devices, which gather by `gathers`."""
        super().__init__("a dry run")
        self.ranks = ranks
        self.gathers = gathers
        self._next = ALIGNMENT
        self._contents: dict[int, NDArray[np.uint8]] = {}  # of what was written or looked at, by start

    def peers(self, pointer: int) -> tuple[int, ...]:
        return (pointer,) * self.ranks

    def alloc(self, nbytes: int, name: str = "") -> int:
        return self._add(nbytes, None)

    def alloc_read_only(self, nbytes: int, read: ReadInto, name: str = "") -> int:
        return self._add(nbytes, read)

    def written(self, pointer: int) -> bool:
        """Whether the host has put anything into the allocation that starts here."""
        return pointer in self._contents

    def released(self, base: int) -> None:
        self._contents.pop(base, None)

    def view(self, pointer: int, nbytes: int, doing: str, *, write: bool = False) -> NDArray[np.uint8]:
        base, (size, read) = self.allocations.check(pointer, nbytes, doing)
        if base not in self._contents:
            self._contents[base] = np.zeros(size, np.uint8)
            if read is not None:
                read(0, self._contents[base])
        return self._contents[base][pointer - base :][:nbytes]

    def _add(self, nbytes: int, read: ReadInto | None) -> int:
        base = self._next
        self._next += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self.allocations.add(base, nbytes, (nbytes, read))
        return base


class DryRunDevice(DryRunMemory):
    """What preparing launches asks of a device, answered for one that is described: it makes graphs and runs none. Not all of
    Device: nothing can be loaded or launched on it, so `as_device` says what it is good for."""

    sanitize = False

    def __init__(
        self,
        gpu: GpuModel,
        target: Target | None = None,
        ranks: int = 1,
        gathers: Gathers = PEERS,
        card: Gpu | None = None,
    ) -> None:
        """gpu: which one it is; target: what kernels are emitted for, the GPU's own unless told otherwise; ranks, gathers: as
        DryRunMemory; card: the GPU described, the known one of this name unless told otherwise."""
        super().__init__(ranks, gathers)
        self.gpu = gpu
        self.code_target = self.target = target or Target.parse(gpu.target)
        self.card = card or gpu.card

    @classmethod
    def of(cls, card: Gpu) -> DryRunDevice:
        """One of a known GPU."""
        return cls(GpuModel(card.product, str(card.target), card.multiprocessors), card=card)

    @classmethod
    def like(cls, device: Device) -> DryRunDevice:
        """One on which a model launches what it launches on this device."""
        return cls(GpuModel.of(device), device.target, device.ranks, device.gathers, device.card)

    @property
    def as_device(self) -> Device:
        """It, for what prepares launches and runs none."""
        return cast(Device, self)

    @property
    def kind(self) -> Literal["cuda", "emulator"]:
        """That of the GPU."""
        return "emulator" if self.gpu.name == EMULATOR else "cuda"

    def describe(self) -> dict[str, Any]:
        """The GPU, as CudaDevice.describe names it."""
        return {"product": self.gpu.name, "gpu": self.gpu.target, "multiprocessors": self.gpu.multiprocessors}

    def most_blocks(self, kernel: LoadedKernel, block: Grid) -> int:
        """No limit is known: that takes the kernel's machine code."""
        return MAX_GRID[0]

    def make_graph(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """The launches as they are."""
        return nodes

    def free_graph(self, graph: Sequence[Node]) -> None:
        """Nothing was taken."""
