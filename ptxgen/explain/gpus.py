"""GPUs by name, and what a multiprocessor of each generation holds and does in a clock: the figures that `ptxgen explain`
calculates with. Nothing here is measured but `read_gbps`, and no kernel is chosen by these figures (executor/choice does).

Sources. Multiprocessors, clocks and bandwidth: NVIDIA's data sheet or architecture white paper of each GPU. Limits of a
multiprocessor: CUDA C++ Programming Guide, "Compute Capabilities", technical specifications; its table "Throughput of Native
Arithmetic Instructions" gives the rates. It has no rate for dp4a, taken to be that of an integer multiply-add.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ptxgen.errors import ArgumentError
from ptxgen.isa.units import Unit
from ptxgen.printable import did_you_mean
from ptxgen.target import REGISTERS, WARP_SIZE, Target


@dataclass(frozen=True)
class Multiprocessor:
    """Limits and rates of one multiprocessor. `rates` are lanes a clock; bytes are per multiprocessor unless said otherwise.

    shared_bytes: shared memory for all its blocks; shared_reserved_bytes: what the system takes of it for each block."""

    threads: int
    blocks: int
    shared_bytes: int
    rates: dict[Unit, float] = field(hash=False)
    shared_reserved_bytes: int = 1024
    registers: int = REGISTERS
    register_unit: int = 256  # registers are dealt out to warps in this unit
    issue: int = 4  # instructions of a warp that start in a clock
    load_store_bytes: int = 128  # between registers and L1 or shared memory, in a clock

    @property
    def warps(self) -> int:
        """The most that it holds at once."""
        return self.threads // WARP_SIZE


def _rates(fma: int, *, alu: int = 64, half: int, convert: int, double: int) -> dict[Unit, float]:
    return {
        Unit.FMA: fma,
        Unit.ALU: alu,
        Unit.MULTIPLY: 64,
        Unit.DOT: 64,
        Unit.HALF: half,
        Unit.DOUBLE: double,
        Unit.CONVERT: convert,
        Unit.SPECIAL: 16,
        Unit.SHUFFLE: 32,
    }


_KIB: Final = 1024

MULTIPROCESSORS: Final[dict[int, Multiprocessor]] = {
    75: Multiprocessor(1024, 16, 64 * _KIB, _rates(64, half=64, convert=16, double=2), shared_reserved_bytes=0),
    80: Multiprocessor(2048, 32, 164 * _KIB, _rates(64, half=128, convert=16, double=32)),
    86: Multiprocessor(1536, 16, 100 * _KIB, _rates(128, half=64, convert=16, double=2)),
    89: Multiprocessor(1536, 24, 100 * _KIB, _rates(128, half=64, convert=16, double=2)),
    90: Multiprocessor(2048, 32, 228 * _KIB, _rates(128, half=128, convert=64, double=64)),
    100: Multiprocessor(2048, 32, 228 * _KIB, _rates(128, half=128, convert=64, double=64)),
    120: Multiprocessor(1536, 24, 100 * _KIB, _rates(128, alu=128, half=64, convert=16, double=2)),
}
"""By generation: 90 for sm_90."""


@dataclass(frozen=True)
class SoldGpu:
    """A GPU that is sold. `bandwidth_gbps` of its memory is the maker's figure, in 1e9 bytes a second; `read_gbps` is what a
    plain streaming read was measured to reach, 0 where it was not measured; `clock_mhz` is its highest boost clock."""

    name: str
    title: str
    sm: int
    multiprocessors: int
    clock_mhz: int
    bandwidth_gbps: int
    source: str
    read_gbps: int = 0

    @property
    def target(self) -> Target:
        """The generation's."""
        return Target(self.sm)

    @property
    def multiprocessor(self) -> Multiprocessor:
        """The generation's."""
        return MULTIPROCESSORS[self.sm]


GPUS: Final[dict[str, SoldGpu]] = {
    gpu.name: gpu
    for gpu in (
        SoldGpu("t4", "T4", 75, 40, 1590, 320, "T4 data sheet, 2019"),
        SoldGpu("a100", "A100 SXM 80 GB", 80, 108, 1410, 2039, "A100 data sheet, 2021"),
        SoldGpu("a10", "A10", 86, 72, 1695, 600, "A10 data sheet, 2021"),
        SoldGpu("rtx3090", "GeForce RTX 3090", 86, 82, 1695, 936, "GA102 white paper, 2020"),
        SoldGpu("l4", "L4", 89, 58, 2040, 300, "L4 data sheet, 2023"),
        SoldGpu("l40s", "L40S", 89, 142, 2520, 864, "L40S data sheet, 2023"),
        SoldGpu("rtx4090", "GeForce RTX 4090", 89, 128, 2520, 1008, "Ada white paper, 2022"),
        SoldGpu("h100", "H100 SXM 80 GB", 90, 132, 1980, 3350, "H100 data sheet, 2023"),
        SoldGpu("h100pcie", "H100 PCIe 80 GB", 90, 114, 1755, 2000, "H100 data sheet, 2023"),
        SoldGpu("h200", "H200 SXM", 90, 132, 1980, 4800, "H200 data sheet, 2024; read limit measured in November 2026", 4650),
        SoldGpu("b200", "B200 SXM", 100, 148, 1965, 8000, "B200 data sheet, 2024"),
        SoldGpu("rtx5090", "GeForce RTX 5090", 120, 170, 2407, 1792, "RTX Blackwell white paper, 2025"),
    )
}
DEFAULT_GPU: Final = GPUS["h200"]


def find_gpu(name: str) -> SoldGpu:
    """The GPU of this name, in any case and spacing (`RTX 4090`). ArgumentError lists the known ones."""
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    if plain not in GPUS:
        hint = did_you_mean(plain, GPUS)
        raise ArgumentError(f"unknown GPU {name!r}; {hint and hint + ' '}known: {', '.join(GPUS)}")
    return GPUS[plain]


def newest_for(target: Target) -> SoldGpu:
    """A GPU that runs code for `target`: the one of its own generation with the most bandwidth, else of the next newer one."""
    sm = min((gpu.sm for gpu in GPUS.values() if gpu.sm >= target.sm), default=DEFAULT_GPU.sm)
    return max((gpu for gpu in GPUS.values() if gpu.sm == sm), key=lambda gpu: gpu.bandwidth_gbps)
