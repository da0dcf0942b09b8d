"""What instructions do besides computing their destination, by row name: the facts that a static analysis needs and that a
row's meaning cannot be asked for. Kept beside the rows because opcodes are spelt nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

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

ATOMICS = frozenset({"atom", "atom_cas", "atom_add_half", "red", "red_add_half"})
"""Read and write memory in one step."""

STORES = frozenset({"st", *ATOMICS})
"""Write memory that other blocks may see."""

UNORDERED_READS = frozenset({"volatile", "relaxed", "acquire"})
"""Values of the modifier `order` that say other threads may be writing: two threads may then read different values."""

READ_ONLY_LOADS = frozenset({"ld_nc"})
"""Promise that nobody writes what they load while the kernel runs."""

PREFETCHES = frozenset({"prefetch", "prefetchu"})
"""Name an address without reading or writing what is there."""

_FROM_GLOBAL = {"cp_async": "b"}


def space_of(name: str, modifiers: Mapping[str, str], place: str) -> str:
    """The state space of the address in an operand place; empty for a generic one."""
    return "global" if _FROM_GLOBAL.get(name) == place else modifiers.get("space", "").partition("::")[0]


def waits_for_grids(name: str, modifiers: Mapping[str, str]) -> bool:
    """Whether an instruction waits until the grids before this one have ended and their writes are seen."""
    return name == "griddepcontrol" and modifiers["action"] == "wait"


CARRY_WRITERS = frozenset({"add_cc", "sub_cc", "mad_cc", "addc", "subc", "madc"})
CARRY_READERS = frozenset({"addc", "subc", "madc"})
"""Use the carry flag, a register that no operand names."""


class Scope(IntEnum):
    """The threads that an access or a fence is for (PTX ISA 8.5). A cluster is one block: nothing here launches larger ones."""

    NONE = 0
    BLOCK = 1
    DEVICE = 2


@dataclass(frozen=True)
class Ordering:
    """What an instruction promises other threads (PTX ISA 8.7): a strong access or a fence has a `scope`, a weak one has none.
    What `acquires` sees what was written before the release that it read; a `fence` does both for the thread's other accesses.
    """

    scope: Scope = Scope.NONE
    volatile: bool = False
    acquires: bool = False
    releases: bool = False
    fence: bool = False

    @property
    def synchronises(self) -> bool:
        return self.acquires or self.releases or self.fence


WEAK = Ordering()
_SCOPES = {"cta": Scope.BLOCK, "cluster": Scope.BLOCK, "gpu": Scope.DEVICE, "gl": Scope.DEVICE, "sys": Scope.DEVICE}


def ordering(name: str, modifiers: Mapping[str, str]) -> Ordering:
    """The ordering of a row with these modifiers. An atomic is relaxed and for the device unless it says otherwise."""
    if name == "membar":
        return Ordering(_SCOPES[modifiers["level"]], fence=True)
    if name == "fence":
        return Ordering(_SCOPES[modifiers["scope"]], fence=True)
    order = modifiers.get("order", "relaxed" if name in ATOMICS else "weak")
    if order == "weak":
        return WEAK
    return Ordering(
        _SCOPES[modifiers.get("scope", "gpu")],
        volatile=order == "volatile",
        acquires=order in ("acquire", "acq_rel"),
        releases=order in ("release", "acq_rel"),
    )
