"""The memory that one worker needs to run blocks of one shape, made once and used again by every launch of that shape."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

from ptxgen.emulator.facts import Facts
from ptxgen.emulator.layout import EXITED, ContextWord, State
from ptxgen.emulator.runtime.bulk_copies import QUEUE_BYTES
from ptxgen.emulator.runtime.reports import FindingRecords
from ptxgen.emulator.runtime.shadow import RECORD_BYTES, shadow_bytes
from ptxgen.errors import PtxGenError
from ptxgen.target import WARP_SIZE

QUANTUM = 1 << 16
SANITIZED_QUANTUM = 1 << 12
"""Backward jumps of a warp before it lets the others run: some milliseconds."""
_LARGE = 1 << 20


def aligned(size: int) -> tuple[ctypes.Array[ctypes.c_char], int]:
    """Memory of at least `size` zeros at a multiple of 128, and its address; PtxGenError where the host has no room."""
    try:
        if size < _LARGE:
            raw = (ctypes.c_char * (size + 128))()
        else:  # takes room where it is touched
            pages = mmap.mmap(-1, size + 128, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            raw = (ctypes.c_char * (size + 128)).from_buffer(pages)
    except (MemoryError, OSError) as error:
        raise PtxGenError(f"the emulator needs {size} bytes of memory in one piece, which the host does not have") from error
    return raw, -(-ctypes.addressof(raw) // 128) * 128


class Scratch:
    """What one worker needs to run blocks of one shape: the context, the warps' states, shared and local memory."""

    def __init__(self, facts: Facts, block: tuple[int, int, int], shared: int) -> None:
        threads = block[0] * block[1] * block[2]
        warps = -(-threads // WARP_SIZE)
        self.threads = threads
        self.context = (ctypes.c_int64 * len(ContextWord))()
        self.address = ctypes.addressof(self.context)
        state_bytes = -(-facts.state_bytes // 128) * 128
        total = facts.shared_bytes + shared
        self.states, states = aligned(state_bytes * warps)
        self.shared, shared_at = aligned(total)
        self.local, local_at = aligned(facts.local_bytes * warps * WARP_SIZE)
        self.arrived = (ctypes.c_int32 * 17)()
        c = self.context
        c[ContextWord.SHARED], c[ContextWord.SHARED_BYTES], c[ContextWord.DYNAMIC_SHARED] = shared_at, total, shared
        c[ContextWord.LOCAL], c[ContextWord.LOCAL_BYTES] = local_at, facts.local_bytes
        c[ContextWord.NTID_X], c[ContextWord.NTID_Y], c[ContextWord.NTID_Z] = block
        c[ContextWord.WARPS], c[ContextWord.WARP_COUNT], c[ContextWord.STATE_BYTES] = states, warps, state_bytes
        c[ContextWord.THREADS] = threads
        c[ContextWord.ARRIVED] = ctypes.addressof(self.arrived)
        c[ContextWord.BULK] = facts.bulk_offset
        c[ContextWord.WAITS] = facts.bulk_offset + QUEUE_BYTES if facts.bulk_offset else 0
        if facts.sanitize:
            granules = -(-total >> facts.shared_shift)
            self.shadow, c[ContextWord.SHADOW] = aligned(shadow_bytes(granules, states=True))
            c[ContextWord.SHARED_SHIFT], c[ContextWord.SHARED_STRIDE] = facts.shared_shift, granules * RECORD_BYTES
            c[ContextWord.GLOBAL_SHIFT] = facts.global_shift
            self.local_shadow, c[ContextWord.LOCAL_SHADOW] = aligned(facts.local_bytes * warps * WARP_SIZE)
            self.findings = FindingRecords()
            c[ContextWord.FINDINGS] = ctypes.addressof(self.findings)
        for warp in range(warps):
            self._start_warp(states + warp * state_bytes, warp, block)

    def _start_warp(self, state: int, warp: int, block: tuple[int, int, int]) -> None:
        lanes = [warp * WARP_SIZE + lane for lane in range(WARP_SIZE)]
        vector = ctypes.c_uint32 * WARP_SIZE

        def put(offset: int, numbers: Sequence[int]) -> None:
            ctypes.memmove(state + offset, vector(*numbers), 128)

        put(State.FIRST_PCS, [0 if t < self.threads else EXITED for t in lanes])
        put(State.TID_X, [t % block[0] for t in lanes])
        put(State.TID_Y, [t // block[0] % block[1] for t in lanes])
        put(State.TID_Z, [t // (block[0] * block[1]) for t in lanes])
        ctypes.c_int32.from_address(state + State.WARP).value = warp
