"""Where things lie in the memory that a compiled kernel and machine.py share: the launch context, the state of a warp, findings."""

from __future__ import annotations

from enum import IntEnum, auto


class Slot(IntEnum):
    """The 64-bit words of the launch context, one context a worker."""

    def _generate_next_value_(name: str, start: int, count: int, last: list[int]) -> int:  # type: ignore[override]
        return count

    PARAMETERS = auto()  # address of the parameter bytes
    SHARED = auto()  # address of the block's shared memory
    SHARED_BYTES = auto()  # static and dynamic
    DYNAMIC_SHARED = auto()  # dynamic alone
    LOCAL = auto()  # address of thread 0's local memory
    LOCAL_BYTES = auto()  # a thread
    NTID_X = auto()
    NTID_Y = auto()
    NTID_Z = auto()
    NCTAID_X = auto()
    NCTAID_Y = auto()
    NCTAID_Z = auto()
    CTAID_X = auto()
    CTAID_Y = auto()
    CTAID_Z = auto()
    WARPS = auto()  # address of the warps' states
    WARP_COUNT = auto()
    STATE_BYTES = auto()  # a warp
    THREADS = auto()  # a block
    BUDGET = auto()  # turns that a block may take without finishing
    QUANTUM = auto()  # backward jumps a warp may take in a turn
    DATA = auto()  # address of the module's global and const variables
    ARRIVED = auto()  # address of 16 x i32: threads that arrived at a barrier without waiting
    CTA_ORDER = auto()  # address of i64[blocks], or 0
    WARP_ORDER = auto()  # address of i64[warps], or 0
    FAULT_LINE = auto()  # ptx line of a trap
    FAULT_BLOCK = auto()  # linear number of the block that stopped the launch
    FINDINGS = auto()  # address of the findings
    MAP = auto()  # address of the memory map
    MAP_COUNT = auto()
    SHADOW = auto()  # address of the shared memory's shadow
    LOCAL_SHADOW = auto()  # address of the local memory's shadow, a byte each
    EPOCH = auto()  # block barriers passed, times 2
    SERIAL = auto()  # instructions checked so far
    DATA_BYTES = auto()
    PARAMETER_BYTES = auto()


class State:
    """Byte offsets in the state of a warp. Vectors of 32 x i32 first; the registers follow at REGISTERS."""

    PCS = 0
    KIND = 128  # what a waiting lane waits for: 0 its warp, n+1 barrier n
    NEED = 256  # threads that its barrier waits for, 0 for all
    FIRST_PCS = 384  # PCS at the start of a block
    TID_X = 512
    TID_Y = 640
    TID_Z = 768
    ASYNC_GROUP = 896  # cp.async groups committed
    ASYNC_COUNT = 1024  # copies in the lane's queue
    LINE = 1152  # ptx line of the barrier that a lane waits at
    WARP = 1280  # i32
    SYNC_EPOCH = 1284  # i32, bar.warp.sync passed
    REGISTERS = 1344


WAITING = 0x80000000
"""Set in the pc of a lane that waits; the rest is where it goes on."""
EXITED = 0xFFFFFFFF

FINISHED, BLOCKED, YIELDED, TRAPPED, DEADLOCKED, ENDLESS = range(6)
"""What a warp returns (first four) and what a run of blocks returns (all but BLOCKED and YIELDED)."""

ASYNC_CAPACITY = 64
"""Copies in flight a lane; one more completes the oldest early, which a program cannot tell from a fast memory."""
ASYNC_ENTRY = 32
"""Bytes of a queued copy: i64 destination, i64 source, i32 size, i32 bytes read, i32 group, i32 line."""
