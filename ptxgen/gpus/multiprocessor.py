"""What a multiprocessor of each generation holds, and what its units do in a clock.

Sources. Limits: CUDA C++ Programming Guide, "Compute Capabilities", technical specifications; its table "Throughput of Native
Arithmetic Instructions" gives the rates of all but tensor units. It has no rate for dp4a, taken to be that of an integer
multiply-add. Assumed: sm_87 as sm_86, sm_103 and 110 as sm_100 but 2 f64 a clock, sm_121 as sm_120.

Tensor units: computed from the dense peaks, multiprocessors and clocks of the architecture white papers (Turing, A100, GA102,
Ada, H100, RTX Blackwell) and of the data sheets of Jetson AGX Orin, Jetson T5000, HGX B200 and HGX B300 (int8: 2 POPS of eight,
sparse). The peaks of sm_90, 100, 103 and 110 are those of their own instructions (wgmma, tcgen05); what `mma.sync` reaches
there: sm_90 62.9 % of that (an H100 in Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via
Microbenchmarking", 2024), fp8 as f16, to which it is converted; sm_100, 103 and 110 assumed as A100, for want of a source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ptxgen.isa.units import Unit
from ptxgen.target import REGISTERS, WARP_SIZE, Target


@dataclass(frozen=True)
class TensorRates:
    """Multiply-adds a clock of a multiprocessor's tensor units, of dense matrices, 0 for none: of f16 and fp8 with f32 sums, of
    int8 with s32 sums."""

    f16: int
    int8: int
    fp8: int = 0


@dataclass(frozen=True)
class Multiprocessor:
    """Limits and rates of one multiprocessor. `rates` are lanes a clock; bytes are per multiprocessor unless said otherwise.

    mma: what `mma.sync` reaches; warpgroup: what instructions of warpgroups reach (wgmma, tcgen05), None where there are none.
    shared_bytes: shared memory for all its blocks; shared_block_bytes: of one block at most; shared_reserved_bytes: what the
    system takes of it for each block."""

    threads: int
    blocks: int
    shared_bytes: int
    shared_block_bytes: int
    rates: Mapping[Unit, float] = field(hash=False)
    mma: TensorRates
    warpgroup: TensorRates | None = None
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


def _multiprocessor(
    sm: int,
    threads: int,
    blocks: int,
    shared_kib: int,
    rates: dict[Unit, float],
    mma: TensorRates,
    warpgroup: TensorRates | None = None,
    shared_reserved_bytes: int = 1024,
) -> Multiprocessor:
    return Multiprocessor(
        threads, blocks, shared_kib * _KIB, Target(sm).max_shared, rates, mma, warpgroup, shared_reserved_bytes
    )


_SMALL: Final = _rates(128, half=64, convert=16, double=2)
_LARGE: Final = _rates(128, half=128, convert=64, double=64)
_BLACKWELL: Final = _rates(128, alu=128, half=64, convert=16, double=2)
_FULL: Final = TensorRates(512, 1024, 1024)
_A100: Final = TensorRates(1024, 2048)

MULTIPROCESSORS: Final[Mapping[int, Multiprocessor]] = {
    sm: _multiprocessor(sm, *row)  # type: ignore[arg-type]
    for sm, row in {
        75: (1024, 16, 64, _rates(64, half=64, convert=16, double=2), TensorRates(512, 1024), None, 0),
        80: (2048, 32, 164, _rates(64, half=128, convert=16, double=32), _A100),
        86: (1536, 16, 100, _SMALL, TensorRates(512, 1024)),
        87: (1536, 16, 164, _SMALL, _A100),
        89: (1536, 24, 100, _SMALL, _FULL),
        90: (2048, 32, 228, _LARGE, TensorRates(1288, 2576, 1288), TensorRates(2048, 4096, 4096)),
        100: (2048, 32, 228, _LARGE, TensorRates(1024, 2048, 1024), TensorRates(4096, 8192, 8192)),
        103: (2048, 32, 228, _LARGE | {Unit.DOUBLE: 2}, TensorRates(1024, 256, 1024), TensorRates(4096, 256, 8192)),
        110: (1536, 24, 228, _LARGE | {Unit.DOUBLE: 2}, TensorRates(1024, 2048, 1024), TensorRates(4096, 8192, 8192)),
        120: (1536, 24, 100, _BLACKWELL, _FULL),
        121: (1536, 24, 100, _BLACKWELL, _FULL),
    }.items()
}
"""By generation: 90 for sm_90. Tensor units are those of the product lines that are not GeForce."""


def multiprocessor_of(sm: int) -> Multiprocessor:
    """That of a generation, or of the newest known one before it."""
    return MULTIPROCESSORS[max(known for known in MULTIPROCESSORS if known <= sm)]
