"""GPUs by name, and what a multiprocessor of each generation holds and does in a clock: the figures that `ptxgen explain`
calculates with. Nothing here is measured but `read_gbps`, and no kernel is chosen by these figures (executor/choice does).

Sources. Multiprocessors, clocks and bandwidth: NVIDIA's data sheet or architecture white paper of each GPU. Limits of a
multiprocessor: CUDA C++ Programming Guide, "Compute Capabilities", technical specifications; its table "Throughput of Native
Arithmetic Instructions" gives the rates. It has no rate for dp4a, taken to be that of an integer multiply-add.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
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
    plain streaming read was measured to reach, 0 where it was not measured; `clock_mhz` is its highest boost clock; `memory_gb`
    is the size of its memory; `product` is what the driver calls it, where that was seen."""

    name: str
    title: str
    sm: int
    multiprocessors: int
    clock_mhz: int
    bandwidth_gbps: int
    memory_gb: int
    source: str
    read_gbps: int = 0
    product: str = ""

    @property
    def target(self) -> Target:
        """The generation's."""
        return Target(self.sm)

    @property
    def multiprocessor(self) -> Multiprocessor:
        """The generation's."""
        return MULTIPROCESSORS[self.sm]


GPUS: Final[dict[str, SoldGpu]] = {
    gpu["name"]: SoldGpu(**gpu) for gpu in json.loads(Path(__file__).with_suffix(".json").read_bytes())
}
"""By name. The rows are in gpus.json: the figures and where they are from."""
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
