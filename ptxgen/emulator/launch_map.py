"""What the checks of a launch look up, or of several that run together: the memory that they may touch, shadows of what they
may write, which block ran when."""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from ptxgen.emulator.layout import ContextWord
from ptxgen.emulator.memory_map import Allocation, MemoryMap
from ptxgen.emulator.ordering import Order, SerialOrder
from ptxgen.emulator.ordering_together import TogetherOrder, block_of
from ptxgen.emulator.program import ParsedParameter
from ptxgen.emulator.runtime.check import CONSTANT, READ_ONLY, SETTLED, WATCHED, MapEntry
from ptxgen.emulator.runtime.shadow import OLDEST_EPOCH, RECORD_BYTES, SPAN, Record, Slots, shadow_bytes
from ptxgen.isa.effects import MemoryScope

_RESERVE_NOTHING = 0x4000  # Linux's MAP_NORESERVE: most of a shadow is never touched
_MAX_NAMED_BLOCKS = 1 << 24
_MASK = (1 << 64) - 1

Context = ctypes.Array[ctypes.c_int64]


class Touched(NamedTuple):
    """Bytes of global memory that some launch has read or written."""

    start: int
    nbytes: int
    writes: bool


class Whose(NamedTuple):
    """Whose an epoch is: of which launch, of those that run together, and of which of its blocks; the block is None where it is
    not known, and where it was something `earlier` than the launch on the same device."""

    launch: int
    block: int | None
    earlier: bool = False


def target_addresses(
    context: Context,
    names: Collection[str] | None,
    parameters: Sequence[ParsedParameter],
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
            targets += words.from_address(context[ContextWord.PARAMETERS] + parameter.offset)
    return targets


class LaunchMap:
    """The map of a launch of `blocks` blocks, put into its contexts, one that they use in turn or one for each of them; it must
    live as long as the launch. `targets` are the addresses that the kernel may write through, None for any; `synchronises`: it
    has fences, acquires or releases.

    Of launches that run together, each on a device of its own, the contexts stand one after the other, `devices` says how many
    each has, and `earlier` what each device has touched before. `own`: the memory of each, where it may touch that alone."""

    def __init__(
        self,
        contexts: Sequence[Context],
        memory: MemoryMap,
        blocks: int,
        targets: Collection[int] | None,
        synchronises: bool,
        devices: Sequence[int] = (),
        earlier: Sequence[Sequence[Touched]] = (),
        own: Sequence[MemoryMap] = (),
    ) -> None:
        c = contexts[0]
        self.memory = memory
        devices = devices or [len(contexts)]
        self._ends = list(accumulate(devices))
        allocations = sorted(memory.allocations.values(), key=lambda a: (a.base, a.size))
        self._shadows: list[_Shadow] = []
        self._maps = [_listed(self._entries(allocations, targets, c[ContextWord.GLOBAL_SHIFT]))]
        self._maps += [_listed(self._entries_of(launch)) for launch in own]
        for number, context in enumerate(contexts):
            entries = self._maps[1 + bisect_right(self._ends, number) if own else 0]
            context[ContextWord.MAP], context[ContextWord.MAP_COUNT] = ctypes.addressof(entries), len(entries) - 1
            context[ContextWord.WIDEST] = MemoryScope.SYSTEM if len(devices) > 1 else MemoryScope.DEVICE
        self._together = len(contexts) > 1
        self._block_order = c[ContextWord.CTA_ORDER]
        self._epochs = (ctypes.c_uint32 * (0 if self._together else min(blocks, _MAX_NAMED_BLOCKS)))()
        c[ContextWord.BLOCK_EPOCHS], c[ContextWord.BLOCK_EPOCHS_COUNT] = ctypes.addressof(self._epochs), len(self._epochs)
        c[ContextWord.LAST_EVENT] = 0
        self._order: Order | None = None
        self.together: TogetherOrder | None = None
        if self._together:
            self._order = self.together = _take_turns(contexts, devices)
            for device, touched in enumerate(earlier if len(devices) > 1 else ()):
                for one in touched:
                    self._remember(one, OLDEST_EPOCH + (len(contexts) + device) * SPAN)
        elif synchronises:
            self._order = SerialOrder(range(c[ContextWord.SHARED], c[ContextWord.SHARED] + c[ContextWord.SHARED_BYTES]))
        addresses = self._order.addresses() if self._order is not None and synchronises else (0, 0)
        for context in contexts:
            context[ContextWord.ORDERED], context[ContextWord.EVENT] = addresses

    def whose(self, epoch: int) -> Whose:
        """Of whom it is, to ask while the launch's order of blocks lives; no block in a grid so large that it was not kept."""
        if self._together:
            number = block_of(epoch)
            if number >= self._ends[-1]:
                return Whose(number - self._ends[-1], None, earlier=True)
            launch = bisect_right(self._ends, number)
            return Whose(launch, number - (self._ends[launch - 1] if launch else 0))
        index = bisect_right(self._epochs, epoch, key=lambda first: first or 1 << 32) - 1  # 0 for blocks that did not run
        if index < 0 or index == _MAX_NAMED_BLOCKS - 1:
            return Whose(0, None)
        if self._block_order == 0:
            return Whose(0, index)
        return Whose(0, ctypes.c_int64.from_address(self._block_order + 8 * index).value)

    def _remember(self, touched: Touched, epoch: int) -> None:
        """Put an access of that epoch into the shadows of what it touched."""
        slot = Slots.WEAK_WRITE if touched.writes else Slots.READS
        for shadow in self._shadows:
            shadow.fill(touched.start, touched.start + touched.nbytes, slot, Record(epoch))

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
            yield _entry(a, shadow)

    def _entries_of(self, memory: MemoryMap) -> Iterator[MapEntry]:
        """Of one of several launches, whose memory has its shadows already."""
        for a in sorted(memory.allocations.values(), key=lambda a: (a.base, a.size)):
            yield _entry(a, next((shadow for shadow in self._shadows if shadow.base <= a.base < shadow.end), None))


def _entry(a: Allocation, shadow: _Shadow | None) -> MapEntry:
    flags = READ_ONLY * a.read_only | WATCHED * (shadow is not None) | CONSTANT * a.constant | SETTLED * a.settled
    written = ctypes.addressof(a.shadow) if a.shadow is not None else 0
    return MapEntry(a.base, a.size, flags, written, *((shadow.origin, shadow.stride) if shadow is not None else (0, 0)))


def _listed(entries: Iterator[MapEntry]) -> ctypes.Array[MapEntry]:
    """With one behind them that starts beyond every address."""
    listed = list(entries)
    return (MapEntry * (len(listed) + 1))(*listed, MapEntry(base=-1))


def _take_turns(contexts: Sequence[Context], devices: Sequence[int]) -> TogetherOrder:
    """Give each block its epochs, and what it knows of the others; what tells it."""
    order = TogetherOrder(devices)
    for number, c in enumerate(contexts):
        c[ContextWord.EPOCH], c[ContextWord.TOGETHER] = number * SPAN, len(order.known[number])  # a block starts at the next
        c[ContextWord.KNOWN], c[ContextWord.TAKEN] = (ctypes.addressof(words[number]) for words in (order.known, order.taken))
    end = 0
    for count in devices if len(devices) > 1 else ():
        for c in contexts[end : end + count]:
            c[ContextWord.DEVICE], c[ContextWord.DEVICE_SPAN] = OLDEST_EPOCH + end * SPAN, count * SPAN
        end += count
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
        self.base, self.end, self._shift = base, end, shift
        self._first = first = base >> shift
        granules = max(-(-end >> shift) - first, 1)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _RESERVE_NOTHING
        self._memory = mmap.mmap(-1, shadow_bytes(granules, states=False), flags=flags)
        self.stride = granules * RECORD_BYTES
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.origin = _signed(address - first * RECORD_BYTES)

    def fill(self, start: int, end: int, slot: Slots, record: Record) -> None:
        """Write one record into that slot of every granule that these bytes, as far as they are of the range, lie in."""
        start, end = max(start, self.base), min(end, self.end)
        if start < end:
            first, last = (start >> self._shift) - self._first, (end - 1 >> self._shift) - self._first + 1
            at = slot * self.stride
            self._memory[at + first * RECORD_BYTES : at + last * RECORD_BYTES] = bytes(record) * (last - first)


def _signed(word: int) -> int:
    return ((word & _MASK) ^ (1 << 63)) - (1 << 63)
