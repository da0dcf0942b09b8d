"""Special registers: read-only registers that `mov` can read (PTX ISA 10). What an emulated machine puts in them is its own."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.isa.operands import Special
from ptxgen.isa.table import Need
from ptxgen.types import U32, U64, DType


@dataclass(frozen=True)
class SpecialRegister:
    """A special register: its name with the percent sign, its type, what it holds, its section, what it needs."""

    name: str
    type: DType
    meaning: str
    section: str
    need: Need = (75, (6, 3))

    @property
    def operand(self) -> Special:
        """As an operand of `mov`."""
        return Special(self.name, self.type)


def _dimensions(name: str, meaning: str, section: str) -> list[SpecialRegister]:
    return [SpecialRegister(f"%{name}.{axis}", U32, f"{meaning}, {axis}", section) for axis in "xyz"]


_LANE_MASKS = {
    "eq": "this lane",
    "le": "this lane and those below",
    "lt": "the lanes below",
    "ge": "this lane and those above",
    "gt": "the lanes above",
}

ALL = (
    *_dimensions("tid", "the thread in its block", "10.1"),
    *_dimensions("ntid", "threads of a block", "10.2"),
    SpecialRegister("%laneid", U32, "the lane in its warp", "10.3"),
    SpecialRegister("%warpid", U32, "the warp in its block; it may change while a thread runs", "10.4"),
    SpecialRegister("%nwarpid", U32, "the most warps that a multiprocessor holds", "10.5"),
    *_dimensions("ctaid", "the block in the grid", "10.6"),
    *_dimensions("nctaid", "blocks of the grid", "10.7"),
    SpecialRegister("%smid", U32, "the multiprocessor; it may change while a thread runs", "10.8"),
    SpecialRegister("%nsmid", U32, "the highest %smid, plus one", "10.9"),
    SpecialRegister("%gridid", U64, "the launch", "10.10"),
    *(
        SpecialRegister(f"%lanemask_{relation}", U32, f"one bit a lane: {meaning}", f"10.{18 + i}")
        for i, (relation, meaning) in enumerate(_LANE_MASKS.items())
    ),
    SpecialRegister("%clock", U32, "cycles, the low 32 bits", "10.23"),
    SpecialRegister("%clock_hi", U32, "cycles, the high 32 bits", "10.23"),
    SpecialRegister("%clock64", U64, "cycles", "10.24"),
    SpecialRegister("%globaltimer", U64, "nanoseconds", "10.28"),
    SpecialRegister("%globaltimer_lo", U32, "nanoseconds, the low 32 bits", "10.28"),
    SpecialRegister("%globaltimer_hi", U32, "nanoseconds, the high 32 bits", "10.28"),
    SpecialRegister("%total_smem_size", U32, "shared memory of the block in bytes, static, dynamic and reserved", "10.30"),
    SpecialRegister("%dynamic_smem_size", U32, "dynamic shared memory of the block in bytes", "10.32"),
)
BY_NAME = {register.name: register for register in ALL}
