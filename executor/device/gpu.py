"""The GPU that the executor runs on, as far as the choice of kernels depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from executor.device.protocol import Device

EMULATOR: Final = "emulator"


@dataclass(frozen=True)
class GpuModel:
    """name: the maker's (`NVIDIA L4`), "emulator" for that; target: the generation that its machine code is for (`sm_89`);
    multiprocessors: how many, 0 for the emulator."""

    name: str
    target: str
    multiprocessors: int

    @classmethod
    def of(cls, device: Device) -> Self:
        """That of a device."""
        if device.kind != "cuda":
            return cls(EMULATOR, str(device.target), 0)
        facts = device.describe()
        return cls(facts["product"], facts["gpu"], facts["multiprocessors"])
