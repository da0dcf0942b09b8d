"""What instructions do besides computing their destination, by row name: the facts that a static analysis needs and that a
row's meaning cannot be asked for. Kept beside the rows because opcodes are spelt nowhere else."""

from __future__ import annotations

BRANCHES = frozenset({"bra", "brx_idx"})
"""Go on elsewhere; a guarded one may also fall through."""

ENDS = frozenset({"ret", "exit", "trap"})
"""End the thread."""

BLOCK_BARRIERS = frozenset({"bar_sync", "barrier_sync"})
"""Wait for the whole block, or with a second operand for that many threads, in whole warps."""

WARP_WIDE = frozenset(
    {"shfl", "vote", "match", "redux", "elect", "bar_warp_sync", "ldmatrix", "stmatrix", "mma"}
)  # fmt: skip
"""Executed by the lanes of a mask together (operand `mask`), or by all 32 where there is no mask."""

MASK_FIRST = frozenset({"bar_warp_sync"})
"""Those whose mask is their operand `a`."""

SAME_IN_WARP = frozenset({"vote", "redux", "activemask"})
"""Give all lanes of one mask the same result, whatever the other operands."""

LOADS = frozenset({"ld", "ld_nc"})
"""Give what an address holds, so threads with the same address get the same value. Any other row that reads memory may give
every thread another value."""

UNORDERED_READS = frozenset({"volatile", "relaxed", "acquire"})
"""Values of the modifier `order` that say other threads may be writing: two threads may then read different values."""

CARRY_WRITERS = frozenset({"add_cc", "sub_cc", "mad_cc", "addc", "subc", "madc"})
CARRY_READERS = frozenset({"addc", "subc", "madc"})
"""Use the carry flag, a register that no operand names."""
