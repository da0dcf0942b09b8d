"""Where things lie in the memory that a compiled kernel and machine.py share: the launch context, the state of a warp."""

from __future__ import annotations

from enum import IntEnum

LANES_BYTES = 128
"""Of an i32 a lane."""


class ContextWord(IntEnum):
    """The 64-bit words of the launch context, one context a worker."""

    PARAMETERS = 0  # address of the parameter bytes
    SHARED = 1  # address of the block's shared memory
    SHARED_BYTES = 2  # static and dynamic
    DYNAMIC_SHARED = 3  # dynamic alone
    LOCAL = 4  # address of thread 0's local memory
    LOCAL_BYTES = 5  # a thread
    NTID_X = 6
    NTID_Y = 7
    NTID_Z = 8
    NCTAID_X = 9
    NCTAID_Y = 10
    NCTAID_Z = 11
    CTAID_X = 12
    CTAID_Y = 13
    CTAID_Z = 14
    WARPS = 15  # address of the warps' states
    WARP_COUNT = 16
    STATE_BYTES = 17  # a warp
    THREADS = 18  # a block
    BUDGET = 19  # turns that a block may take without finishing
    QUANTUM = 20  # backward jumps a warp may take in a turn
    DATA = 21  # address of the module's global and const variables
    ARRIVED = 22  # address of 16 x i32: threads that arrived at a barrier without waiting
    CTA_ORDER = 23  # address of i64[blocks], or 0
    WARP_ORDER = 24  # address of i64[warps], or 0
    FAULT_LINE = 25  # ptx line of a trap
    TURNS = 26  # what the block at hand has taken from the budget so far; 0 where it has not begun
    FINDINGS = 27  # address of the findings
    MAP = 28  # address of the memory map
    MAP_COUNT = 29
    SHADOW = 30  # address of the shared memory's shadow
    LOCAL_SHADOW = 31  # address of the local memory's shadow, a byte each
    EPOCH = 32  # block barriers passed and blocks started
    SERIAL = 33  # instructions checked so far in the launch
    EARLY = 34  # 1 if the grids before this one may still run until a thread has waited for them
    PARAMETER_BYTES = 35
    NEXT = 36  # the block (before it is reordered) at which a run that paused goes on
    FIRST_EPOCH = 37  # EPOCH at the start of the running block
    BLOCK_EPOCHS = 38  # address of the u32 first epochs of the blocks run, in the order in which they ran
    BLOCK_EPOCHS_COUNT = 39
    SHARED_SHIFT = 40  # log2 of the bytes of a granule of shared memory (runtime/shadow.py)
    SHARED_STRIDE = 41  # bytes between two records of one granule there
    GLOBAL_SHIFT = 42  # log2 of the bytes of a granule of global memory
    ORDERED = 43  # address of what says whether fences and flags order two accesses, or 0 (ordering.py)
    EVENT = 44  # address of what hears of fences and of strong accesses, or 0
    LAST_EVENT = 45  # what tells the last such from others
    TOGETHER = 46  # blocks that are there at once and take turns, or 0 where they run one after the other
    KNOWN = 47  # address of a u32 for each of those: its last epoch that comes before all that this block does now
    TAKEN = 48  # the same of what some thread does, so of all that this block does after its next barrier
    PRINT = 49  # address of the function that prints (printing.py), 0 where the kernel prints nothing
    WIDEST = 50  # the widest scope there is: that of the device, or with several devices that of the system
    DEVICE = 51  # where several devices run together: the first epoch of the blocks of this one
    DEVICE_SPAN = 52  # how many epochs they have, from there on; else 0
    BULK = 53  # bytes from a warp's state to its bulk copies (runtime/bulk_copies.py); 0 where the kernel has none
    WAITS = 54  # the same to what the sanitiser knows of mbarriers (runtime/handovers.py); 0 where there are none
    BARRIER_AT = 55  # SERIAL at the last barrier of the block, or at its start
    PASSED = 56  # accesses of any thread up to this SERIAL have passed a proxy fence (runtime/proxies.py)
    HASTE = 57  # what chooses when copies move their bytes, or 0: at the wait (runtime/bulk_copies.py)
    LIMIT = 58  # QUANTUM, or 0 once the run is to pause (watch.py)
    WARP_AT = 59  # 1 + the warp at which a run that paused within a turn goes on; 0 if it did not
    SEEN = 60  # the statuses of the warps before that one in that turn, a bit each
    BEGUN = 61  # TURNS at the start of that call's turns
    IN_FLIGHT = 62  # 1 while launches before this one still run: threads that wait for them sleep (overlapping.py)
    FREED = 63  # ASKED where launches overlap, 1 once a thread of the block has let the next one start; else 0
    LAUNCH_EPOCH = 64  # where launches overlap: the first epoch of the blocks of this one; else 0
    TURN = 65  # what a turn of a block may take from the budget before it ends


BARRIERS = 16
"""Barriers of a block."""


class State(IntEnum):
    """Byte offsets in the state of a warp: before WARP vectors of an i32 a lane, from there on an i32 each, and from REGISTERS
    on the registers."""

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
    FENCED = 1280  # of the lane's last proxy fence: up to which ContextWord.SERIAL it is for the lane's own accesses,
    FENCED_WARP = 1408  # for those of its warp,
    FENCED_BLOCK = 1536  # and for those of its block (runtime/proxies.py)
    PASSED_WARP = 1664  # the lane's accesses up to this SERIAL have passed a fence, for whoever is in this warp
    PASSED_BLOCK = 1792  # the same for whoever is in the block
    COUNTED = 1920  # for how many threads the predicate held that a lane's barrier counted
    WARP = 2048  # i32
    SYNC_EPOCH = 2052  # i32, bar.warp.sync passed
    WAITED = 2056  # i32, the lanes that have waited for the grids before this one
    PRODUCTS = 2060  # i32, products of its warpgroup that are under way
    PRODUCT_GROUP = 2064  # i32, groups of them committed
    PRODUCT_STEPS = 2068  # i32, a hash of the lines of its warpgroup's instructions
    PRODUCT_LINE = 2072  # i32, the last of them
    BULK_COPIES = 2076  # i32, bulk copies that are queued
    MBARRIERS = 2080  # i32, in the first warp: those of the block that the sanitiser knows
    MET_AT = 2084  # i32, ContextWord.SERIAL at the last bar.warp.sync
    MET_FENCED_BLOCK = 2088  # i32, the most FENCED_BLOCK of its lanes by then
    TICKS = 2092  # i32, backward jumps of the turn that it paused in
    VOTERS = 2096  # i32, the lanes that wait at a barrier that counts, or have not taken what it counted
    VOTES = 2100  # i32, those of them whose predicate holds
    REGISTERS = 2112


ASKED = 2
"""In ContextWord.FREED: the warp that lets the next launch start shall end its turn then."""
WAITING = 0x80000000
"""Set in the pc of a lane that waits; the rest is where it goes on."""
EXITED = 0xFFFFFFFF

FINISHED, BLOCKED, YIELDED, SLEPT, TRAPPED, DEADLOCKED, ENDLESS, PAUSED = range(8)
"""What a warp returns (first five, and PAUSED) and what a run of blocks returns (all but BLOCKED, YIELDED and SLEPT). What is
PAUSED goes on at NEXT when it is called again."""
TIMED_OUT, STUCK = 8, 9
"""What workers.py makes of a launch that has had its time, and of one whose blocks all wait for another."""

REDZONE = 256
"""Bytes around what a kernel may touch that belong to nothing, so that an access a little beyond one thing meets no other."""
