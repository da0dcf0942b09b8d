"""What instructions do besides computing their destination: the attributes of a row that a static analysis needs and that its
meaning cannot be asked for. No instruction is named here; each row says its own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, auto


class Effect(Enum):
    """What an instruction does to memory, to other threads and to the flow of its own. Every row has one."""

    NONE = auto()
    """Computes its destination, and that is all."""
    LOAD = auto()
    """Gives what an address holds, so threads with the same address get the same value."""
    READ_ONLY_LOAD = auto()
    """A load that promises that nobody writes there while the kernel runs."""
    STORE = auto()
    ATOMIC = auto()
    """Reads and writes memory in one step."""
    ASYNC_COPY = auto()
    """Copies from global to shared memory some time later, or groups such copies, or waits for them."""
    BULK_COPY = auto()
    """Copies from global to shared memory some time later, and tells an mbarrier."""
    MBARRIER = auto()
    """Makes an mbarrier in shared memory, arrives at it, or asks how far it is."""
    ASYNC_PRODUCT = auto()
    """Multiplies matrices some time later: until it was waited for, its registers and its shared memory are in use."""
    PRODUCT_FENCE = auto()
    """Lets products that follow see the registers that were written before."""
    PRODUCT_GROUP = auto()
    """Makes a group of the products since the last one."""
    PRODUCT_WAIT = auto()
    """Waits for all but the last few groups of products."""
    PROXY_FENCE = auto()
    """Lets asynchronous products and copies see what ordinary instructions wrote before, and overwrite what they read."""
    PREFETCH = auto()
    """Names an address without reading or writing what is there."""
    FENCE = auto()
    BRANCH = auto()
    """Goes on elsewhere; a guarded one may also fall through."""
    INDEXED_BRANCH = auto()
    """Goes on at one of a list of labels."""
    CALL = auto()
    RETURN = auto()
    """Goes back to the caller; in a kernel, ends the thread."""
    EXIT = auto()
    """Ends the thread."""
    TRAP = auto()
    """Ends the kernel with an error."""
    BLOCK_BARRIER = auto()
    """Waits for the whole block, or with a second operand for that many threads, in whole warps."""
    WARP_BARRIER = auto()
    """Waits for the lanes of a mask."""
    SLEEP = auto()
    """Lets others run first."""
    GRID_CONTROL = auto()
    """Lets the next grid start, or waits for the ones before this one."""


LOADS = frozenset({Effect.LOAD, Effect.READ_ONLY_LOAD})
STORES = frozenset({Effect.STORE, Effect.ATOMIC})
"""Write memory that other blocks may see."""
ADDRESSING = LOADS | STORES | {Effect.ASYNC_COPY, Effect.BULK_COPY, Effect.MBARRIER, Effect.PREFETCH}
"""Take an address."""
BRANCHES = frozenset({Effect.BRANCH, Effect.INDEXED_BRANCH})
ENDS = frozenset({Effect.RETURN, Effect.EXIT, Effect.TRAP})
"""End the thread."""


class LaneResult(Enum):
    """What the lanes of a warp get from an instruction that all their operands are the same for."""

    OWN = auto()
    """Each what it computes from its operands: the same."""
    SAME = auto()
    """The same for all lanes of one mask, even if the other operands differ."""
    SHUFFLED = auto()
    """What another lane holds, so the same."""
    MIXED = auto()
    """Each may get something else."""


UNORDERED_READS = frozenset({"volatile", "relaxed", "acquire"})
"""Values of the modifier `order` that say other threads may be writing: two threads may then read different values."""


class MemoryScope(IntEnum):
    """The threads that an access or a fence is for (PTX ISA 8.5). A cluster is one block: nothing here launches larger ones.
    Threads of the system are those of all devices that run together."""

    NONE = 0
    BLOCK = 1
    DEVICE = 2
    SYSTEM = 3


SCOPES = {
    "cta": MemoryScope.BLOCK,
    "cluster": MemoryScope.BLOCK,
    "gpu": MemoryScope.DEVICE,
    "gl": MemoryScope.DEVICE,
    "sys": MemoryScope.SYSTEM,
}
"""By the word of the text."""


@dataclass(frozen=True)
class Ordering:
    """What an instruction promises other threads (PTX ISA 8.7): a strong access or a fence has a `scope`, a weak one has none.
    What `acquires` sees what was written before the release that it read; a `fence` does both for the thread's other accesses.
    """

    scope: MemoryScope = MemoryScope.NONE
    volatile: bool = False
    acquires: bool = False
    releases: bool = False
    fence: bool = False

    @property
    def synchronises(self) -> bool:
        """Whether it can order accesses of other threads: more than a relaxed access does."""
        return self.acquires or self.releases or self.fence


WEAK = Ordering()
