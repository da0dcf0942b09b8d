"""The GPU that the executor runs on, as far as the choice of kernels depends on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

from executor.device.protocol import Device
from ptxgen.gpus.gpu import Gpu, newest_for, of_product
from ptxgen.target import Target

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

    @property
    def card(self) -> Gpu:
        """The known GPU of this name; else one of its generation, with as many multiprocessors as it has. ArgumentError for an
        unknown generation."""
        known = of_product(self.name) or newest_for(Target.parse(self.target))
        return replace(known, multiprocessors=self.multiprocessors or known.multiprocessors)
