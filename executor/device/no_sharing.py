"""What several devices together say to libraries that would share their memory or streams."""

from __future__ import annotations

from typing import Any, NoReturn

from executor.base.errors import DeviceError
from executor.device.allocations import BorrowedMemory
from executor.device.protocol import Device, MemorySharing


class NoSharing(MemorySharing):
    """Another library has its arrays on one device: all of this is refused."""

    dlpack_device = (-1, 0)

    def __init__(self, device: Device) -> None:
        self._device = device

    @property
    def stream(self) -> Any:
        if self._device.kind == "cuda":
            self._refuse("one stream")
        return None

    def borrow(self, memory: BorrowedMemory) -> None:
        self._refuse("arrays of other libraries")

    def give_back(self, memory: BorrowedMemory) -> None:
        """Nothing was borrowed."""

    def hold(self, pointer: int) -> object:
        self._refuse("arrays for other libraries")

    def note_write(self, pointer: int, nbytes: int) -> None:
        self._refuse("writes of other libraries")

    def wait_for(self, stream: int) -> None:
        self._refuse("streams of other libraries")

    def make_wait(self, stream: int) -> None:
        self._refuse("streams of other libraries")

    def use(self, stream: int) -> Any:
        self._refuse("streams of other libraries")

    def use_again(self, before: Any) -> None:
        """There was none before."""

    def _refuse(self, what: str) -> NoReturn:
        raise DeviceError(f"{self._device.name} have no {what}; that takes an executor on one device")
