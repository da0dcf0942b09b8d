"""How many blocks of a kernel a multiprocessor holds at once, and what keeps it from holding more."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.gpus.multiprocessor import Multiprocessor
from ptxgen.target import WARP_SIZE

REGISTERS_OF_A_THREAD = 8  # registers of a thread are counted up to a multiple of this
WARPS_TOGETHER = 4  # warps get registers in groups of this many, one for each scheduler
SHARED_UNIT = 128  # bytes in which shared memory is dealt out


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps of one multiprocessor. `limit` is what is used up first: threads, blocks, registers or shared memory."""

    blocks: int
    warps: int
    most_warps: int
    limit: str

    @property
    def share(self) -> float:
        """Of the warps that the multiprocessor could hold."""
        return self.warps / self.most_warps


def occupancy(sm: Multiprocessor, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """For blocks of `threads` threads, with `registers` a thread and `shared_bytes` of shared memory a block."""
    warps = -(-threads // WARP_SIZE)
    per_warp = _up(_up(max(registers, 1), REGISTERS_OF_A_THREAD) * WARP_SIZE, sm.register_unit)
    room = {
        "threads": sm.warps // warps,
        "blocks": sm.blocks,
        "registers": sm.registers // per_warp // WARPS_TOGETHER * WARPS_TOGETHER // warps,
    }
    shared = _up(shared_bytes + sm.shared_reserved_bytes, SHARED_UNIT)
    if shared:
        room["shared memory"] = sm.shared_bytes // shared
    limit = min(room, key=lambda what: room[what])
    return Occupancy(room[limit], room[limit] * warps, sm.warps, limit)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
