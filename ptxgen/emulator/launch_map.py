"""What the checks of one launch look up: the memory that it may touch, shadows of what it may write, which block ran when."""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

from ptxgen.emulator.layout import Slot
from ptxgen.emulator.ordering import Order, SerialOrder
from ptxgen.emulator.ordering_together import TogetherOrder, block_of
from ptxgen.emulator.program import Parameter
from ptxgen.emulator.runtime.check import CONSTANT, READ_ONLY, WATCHED, MapEntry
from ptxgen.emulator.runtime.shadow import RECORD_BYTES, SPAN, shadow_bytes
from ptxgen.emulator.sanitizer import Allocation, MemoryMap

_RESERVE_NOTHING = 0x4000  # Linux's MAP_NORESERVE: most of a shadow is never touched
_MAX_NAMED_BLOCKS = 1 << 24
_MASK = (1 << 64) - 1

Context = ctypes.Array[ctypes.c_int64]


def target_addresses(
    context: Context,
    names: Collection[str] | None,
    parameters: Sequence[Parameter],
    variables: Sequence[Allocation],
) -> list[int] | None:
    """The addresses through which a launch may write: what the parameters of these names hold, and those of the module's
    variables if there is another name; None where `names` is."""
    if names is None:
        return None
    targets = [] if {p.name for p in parameters}.issuperset(names) else [a.base for a in variables]
    for parameter in parameters:
        if parameter.name in names:
            words = ctypes.c_uint64 * (parameter.size // 8)
            targets += words.from_address(context[Slot.PARAMETERS] + parameter.offset)
    return targets


class LaunchMap:
    """The map of a launch of `blocks` blocks, put into its contexts, one that they use in turn or one for each of them; it must
    live as long as the launch. `targets` are the addresses that the kernel may write through, None for any; `synchronises`: it
    has fences, acquires or releases."""

    def __init__(
        self,
        contexts: Sequence[Context],
        memory: MemoryMap,
        blocks: int,
        targets: Collection[int] | None,
        synchronises: bool,
    ) -> None:
        c = contexts[0]
        allocations = sorted(memory.allocations.values(), key=lambda a: (a.base, a.size))
        self._shadows: list[_Shadow] = []
        entries = list(self._entries(allocations, targets, c[Slot.GLOBAL_SHIFT]))
        self._map = (MapEntry * (len(entries) + 1))(*entries, MapEntry(base=-1))
        for context in contexts:
            context[Slot.MAP], context[Slot.MAP_COUNT] = ctypes.addressof(self._map), len(entries)
        self._together = len(contexts) > 1
        self._block_order = c[Slot.CTA_ORDER]
        self._epochs = (ctypes.c_uint32 * (0 if self._together else min(blocks, _MAX_NAMED_BLOCKS)))()
        c[Slot.BLOCK_EPOCHS], c[Slot.BLOCK_EPOCHS_COUNT] = ctypes.addressof(self._epochs), len(self._epochs)
        c[Slot.LAST_EVENT] = 0
        self._order: Order | None = None
        if self._together:
            self._order = _take_turns(contexts)
        elif synchronises:
            self._order = SerialOrder(range(c[Slot.SHARED], c[Slot.SHARED] + c[Slot.SHARED_BYTES]))
        addresses = self._order.addresses() if self._order is not None and synchronises else (0, 0)
        for context in contexts:
            context[Slot.ORDERED], context[Slot.EVENT] = addresses

    def block_of(self, epoch: int) -> int | None:
        """The linear number of the block that was running then, to ask while the launch's order of blocks lives; None in a grid
        so large that it was not kept."""
        if self._together:
            return block_of(epoch)
        index = bisect_right(self._epochs, epoch, key=lambda first: first or 1 << 32) - 1  # 0 for blocks that did not run
        if index < 0 or index == _MAX_NAMED_BLOCKS - 1:
            return None
        if self._block_order == 0:
            return index
        return ctypes.c_int64.from_address(self._block_order + 8 * index).value

    def _entries(self, allocations: list[Allocation], targets: Collection[int] | None, shift: int) -> Iterator[MapEntry]:
        """Allocations may overlap; those that do share a shadow."""
        end, shadow = -1, None
        for i, a in enumerate(allocations):
            if a.base >= end:
                together = list(_run(allocations, i))
                end = max(b.base + b.size for b in together)
                watched = targets is None or any(a.base <= target < end for target in targets)
                shadow = _Shadow(a.base, end, shift) if watched and not all(b.read_only for b in together) else None
                if shadow is not None:
                    self._shadows.append(shadow)
            flags = READ_ONLY * a.read_only | WATCHED * (shadow is not None) | CONSTANT * a.constant
            written = ctypes.addressof(a.shadow) if a.shadow is not None else 0
            yield MapEntry(a.base, a.size, flags, written, *((shadow.origin, shadow.stride) if shadow is not None else (0, 0)))


def _take_turns(contexts: Sequence[Context]) -> TogetherOrder:
    """Give each block its epochs, and what it knows of the others; what tells it."""
    order = TogetherOrder(len(contexts))
    for number, c in enumerate(contexts):
        c[Slot.EPOCH], c[Slot.TOGETHER] = number * SPAN, len(contexts)  # a block starts at the next
        c[Slot.KNOWN], c[Slot.TAKEN] = (ctypes.addressof(words[number]) for words in (order.known, order.taken))
    return order


def _run(allocations: list[Allocation], start: int) -> Iterator[Allocation]:
    """The allocations from one on that overlap it, directly or through others; `allocations` is sorted."""
    end = allocations[start].base
    for a in allocations[start:]:
        if a.base >= end and a is not allocations[start]:
            return
        end = max(end, a.base + a.size)
        yield a


class _Shadow:
    """Zeroed memory for the records of the granules of an address range. `origin` is where address 0 would have its first."""

    def __init__(self, base: int, end: int, shift: int) -> None:
        first = base >> shift
        granules = max(-(-end >> shift) - first, 1)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _RESERVE_NOTHING
        self._memory = mmap.mmap(-1, shadow_bytes(granules, states=False), flags=flags)
        self.stride = granules * RECORD_BYTES
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.origin = _signed(address - first * RECORD_BYTES)


def _signed(word: int) -> int:
    return ((word & _MASK) ^ (1 << 63)) - (1 << 63)
