"""A device that remembers launches instead of running them, and a cache of kernels that loads nothing: for tests of the
checks."""

from __future__ import annotations

from executor.device.emulated import EmulatedDevice
from executor.device.parameters import ParameterBlock
from executor.device.protocol import Grid, LoadedKernel
from ptxgen.dsl.kernel_type import KernelType


class RememberingDevice(EmulatedDevice):
    """`launches` holds entry, grid, block and the bytes of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[tuple[str, Grid, Grid, bytes]] = []

    def launch(
        self, kernel: LoadedKernel, grid: Grid, block: Grid, parameters: ParameterBlock, work: object | None = None
    ) -> None:
        self.launches.append((kernel.entry, grid, block, parameters.tobytes()))


class NoModules:
    """Says that every kernel is loaded."""

    def load(self, kernel: KernelType, *, dependent: bool = False, stamped: bool = False) -> LoadedKernel:
        return LoadedKernel(kernel.name, None)
