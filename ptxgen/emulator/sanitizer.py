"""What the sanitiser finds and how it says so. The checks themselves are the runtime's (runtime/check.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from ptxgen.emulator.layout import ContextWord
from ptxgen.emulator.memory_map import MemoryMap
from ptxgen.emulator.runtime.reports import FindingRecord
from ptxgen.emulator.runtime.shadow import LINE_BITS, MAX_LINE, THREAD_BITS, THREAD_MASK


class FindingKind(IntEnum):
    """What a finding is about, as the runtime writes it; NAMES has their words."""

    BOUNDS = 1
    MISALIGNED = 2
    UNINITIALISED = 3
    RACE_READ = 4
    RACE_WRITE = 5
    OVERLAP = 6
    EARLY = 7
    READ_ONLY = 8
    BARRIER = 9
    BARRIER_DIVERGED = 10
    SHUFFLE = 11
    MEMBER = 12
    ENDLESS = 13
    DEADLOCK = 14
    TRAP = 15
    BARRIER_NUMBER = 16
    BARRIER_COUNT = 17
    TIMEOUT = 18
    UNORDERED = 19
    PROXY = 20
    OVERWRITTEN = 21
    WARPGROUP = 22
    MBARRIER = 23
    ARRIVED = 24
    COPY_SIZE = 25
    UNWAITED = 26
    UNDER_WAY = 27
    UNFENCED_COPY = 28
    STALE = 29
    READ_ONLY_PATH = 30
    NOT_WAITED = 31


NAMES = {
    FindingKind.BOUNDS: "out of bounds",
    FindingKind.MISALIGNED: "misaligned",
    FindingKind.UNINITIALISED: "uninitialised",
    FindingKind.RACE_READ: "race",
    FindingKind.RACE_WRITE: "race",
    FindingKind.OVERLAP: "race",
    FindingKind.EARLY: "early read",
    FindingKind.READ_ONLY: "read-only",
    FindingKind.BARRIER: "barrier",
    FindingKind.BARRIER_DIVERGED: "barrier",
    FindingKind.SHUFFLE: "shuffle",
    FindingKind.MEMBER: "shuffle",
    FindingKind.ENDLESS: "endless loop",
    FindingKind.DEADLOCK: "deadlock",
    FindingKind.TRAP: "trap",
    FindingKind.BARRIER_NUMBER: "barrier",
    FindingKind.BARRIER_COUNT: "barrier",
    FindingKind.TIMEOUT: "timeout",
    FindingKind.UNORDERED: "unordered",
    FindingKind.PROXY: "unfenced",
    FindingKind.OVERWRITTEN: "race",
    FindingKind.WARPGROUP: "warpgroup",
    FindingKind.MBARRIER: "barrier",
    FindingKind.ARRIVED: "barrier",
    FindingKind.COPY_SIZE: "misaligned",
    FindingKind.UNWAITED: "unwaited",
    FindingKind.UNDER_WAY: "race",
    FindingKind.UNFENCED_COPY: "unfenced",
    FindingKind.STALE: "stale read",
    FindingKind.READ_ONLY_PATH: "stale read",
    FindingKind.NOT_WAITED: "unordered",
}

SPACE_CODES = {"shared": 1, "local": 2, "generic": 3, "param": 4}
"""How the compiled checks name the space of an access; global and constant memory are 0."""

RACES = frozenset({FindingKind.RACE_READ, FindingKind.RACE_WRITE})
PAIRS = RACES | {FindingKind.PROXY, FindingKind.OVERWRITTEN, FindingKind.UNFENCED_COPY, FindingKind.STALE}
"""What two accesses do together: `other` is the one, by `Other`."""

OTHER_EPOCH = THREAD_BITS + LINE_BITS
"""A race's record has in `other` who came before: its thread and line as in the shadow, then its epoch."""

EXTRA_SPACE, EXTRA_STORE, EXTRA_LATE = 32, 40, 41
"""Where the `extra` of an access's record has the code of its space, whether it writes, and whether it is a load that an
mbarrier hands over too early; its size is below."""


def extra(size: int, space: str, *, writes: bool) -> int:
    """The `extra` of an access that is reported without a check."""
    return size | SPACE_CODES.get(space, 0) << EXTRA_SPACE | writes << EXTRA_STORE


@dataclass(frozen=True)
class Site:
    """A line of PTX, and where the text has one the author's file:line and that line's source."""

    ptx_line: int
    ptx_text: str
    location: str = ""
    source: str = ""

    def lines(self) -> list[str]:
        """The site as lines of a message."""
        lines = [f"  ptx line {self.ptx_line}   {self.ptx_text}"] if self.ptx_line else []
        return lines + ([f"  {self.location}" + (f"   {self.source}" if self.source else "")] if self.location else [])


@dataclass(frozen=True)
class Other:
    """Who made the earlier access of a race: the block is None where it is not known, `threads` and `grid` are the shapes of
    its launch. `elsewhere`: its device or launch, where that is another one; `earlier`: it was a launch before this one."""

    thread: int
    block: int | None
    line: int
    threads: tuple[int, int, int]
    grid: tuple[int, int, int]
    elsewhere: str = ""
    earlier: bool = False

    @staticmethod
    def epoch_of(record: FindingRecord) -> int:
        """The epoch of the other access, from the record of a finding."""
        return int(record.other >> OTHER_EPOCH)

    @staticmethod
    def of(
        record: FindingRecord, block: int | None, threads: tuple[int, int, int], grid: tuple[int, int, int],
        elsewhere: str = "", earlier: bool = False,
    ) -> Other:  # fmt: skip
        """From the record of a finding, and what is known of the other's launch."""
        thread, line = record.other & THREAD_MASK, record.other >> THREAD_BITS & MAX_LINE
        return Other(thread, block, line, threads, grid, elsewhere, earlier)

    def __str__(self) -> str:
        if self.earlier:
            return f"a launch before{self.elsewhere}"
        block = " of another block" if self.block is None else f" of block {_text(unflatten(self.block, self.grid))}"
        return f"thread {_text(unflatten(self.thread, self.threads))}{block}{self.elsewhere}"


@dataclass(frozen=True)
class Finding:
    """Something a kernel did that it must not. `thread` and `block` are (x, y, z) of the first occurrence, `address` its byte
    address (an offset in shared, local and parameter memory), `location` the author's file:line if the text has one, `count`
    how often it happened at this line; `against` is the earlier access of a race."""

    kind: str
    kernel: str
    message: str
    ptx_line: int
    ptx_text: str
    location: str
    thread: tuple[int, int, int]
    block: tuple[int, int, int]
    address: int
    count: int = 1
    source: str = ""
    against: Site | None = None

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.message}" + (f" ({self.count} times)" if self.count > 1 else "")]
        lines += Site(self.ptx_line, self.ptx_text, self.location, self.source).lines()
        if self.against is not None:
            lines += ["against", *self.against.lines()]
        return "\n".join(lines)


def describe(
    record: FindingRecord,
    kernel: str,
    context: Sequence[int],
    memory: MemoryMap,
    threads: tuple[int, int, int],
    other: Other | None = None,
) -> str:
    """The message of a finding; `threads` is the block's shape, `other` the earlier access of a race."""
    kind = FindingKind(record.kind)
    where = f"{kernel}, thread {_text(unflatten(record.thread, threads))}"
    where += f" of block {_text(unflatten(record.block, _grid(context)))}"
    space, address = classify(record, context)
    size = record.extra & (1 << EXTRA_SPACE) - 1
    store = bool(record.extra >> EXTRA_STORE & 1)
    verb = "writes" if store else "reads"
    place = f"{space}[{address:#x}..{address + size:#x})" if space else f"{memory.original(address):#x} ({size} bytes)"
    if kind is FindingKind.BOUNDS:
        detail = memory.nearest(address) if not space else f"the block has {context[ContextWord.SHARED_BYTES]} bytes"
        if space == "local":
            detail = f"the thread has {context[ContextWord.LOCAL_BYTES]} bytes"
        if space == "param":
            detail = f"outside of the parameter that it names; together they have {context[ContextWord.PARAMETER_BYTES]} bytes"
        return f"{where} {verb} {place}: {detail}"
    if kind is FindingKind.MISALIGNED:
        return f"{where} {verb} {place}, which is not aligned to {size} bytes"
    if kind is FindingKind.UNINITIALISED:
        detail = "" if space else f": {memory.nearest(address)}"
        return f"{where} reads {place}, which nothing wrote{detail}"
    if kind is FindingKind.STALE:
        return f"{where} loads {place} through the read-only path, where {other} wrote: {memory.nearest(address)}"
    if kind is FindingKind.READ_ONLY_PATH:
        return f"{where} loads {place} through the read-only path, which is for constant memory: {memory.nearest(address)}"
    if kind is FindingKind.NOT_WAITED:
        block = _text(unflatten(record.block, _grid(context)))
        return f"{kernel}, block {block} ends, and none of its threads has waited for the kernels before it"
    if other is not None and kind in RACES:
        did = "wrote" if kind is FindingKind.RACE_READ else "read"
        detail = "" if space else f" ({memory.nearest(address)})"
        if other.block == record.block and not other.elsewhere:
            earlier = f"thread {_text(unflatten(other.thread, threads))}"
            return f"{where} {verb} {place}{detail} that {earlier} {did} since the last barrier"
        return f"{where} {verb} {place}{detail} that {other} {did}, and nothing orders the two"
    if kind is FindingKind.OVERLAP:
        return f"{where} writes {place}, and another lane of the same instruction writes a different value there"
    if kind is FindingKind.EARLY:
        return f"{where} reads {place} before the cp.async that fills it was waited for"
    if kind is FindingKind.READ_ONLY:
        detail = "the parameters of a kernel are" if space else f"{memory.nearest(address)} and is"
        return f"{where} writes {place}: {detail} read-only"
    if kind is FindingKind.BARRIER:
        block = _text(unflatten(record.block, _grid(context)))
        return f"{kernel}, block {block}: {record.address} of {record.extra} threads reach barrier {record.other}"
    if kind is FindingKind.BARRIER_DIVERGED:
        return f"{where} waits at another barrier instruction than other threads of its warp"
    if kind is FindingKind.UNORDERED:
        return f"{where} {verb} {place} before it has waited for the kernels before it: {memory.nearest(address)}"
    if kind in (FindingKind.PROXY, FindingKind.OVERWRITTEN):
        writer = f"thread {_text(unflatten(record.other & THREAD_MASK, threads))}"
        detail = f"shared[{record.address - context[ContextWord.SHARED]:#x}..] that {writer}"
        if kind is FindingKind.PROXY:
            return f"{where}: the product reads {detail} wrote, with no fence.proxy.async since"
        return f"{where}: the product reads {detail} writes before it was waited for"
    if kind in _OF_BULK_COPIES:
        return f"{where} {_of_bulk_copies(kind, record, context, threads)}"
    if kind is FindingKind.WARPGROUP:
        return f"{where}: not all threads of its warpgroup, four whole warps, execute this together"
    if kind is FindingKind.BARRIER_NUMBER:
        return f"{where} waits at barrier {record.address}; a block has barriers 0 to 15"
    if kind is FindingKind.BARRIER_COUNT:
        return f"{where} waits for {record.address} threads; a barrier takes whole warps, multiples of 32"
    if kind is FindingKind.SHUFFLE:
        return f"{where} reads the register of lane {record.address}, which does not take part in the shuffle"
    return f"{where} takes part in a shuffle whose member mask does not name it"


_OF_BULK_COPIES = frozenset(
    {
        FindingKind.MBARRIER,
        FindingKind.ARRIVED,
        FindingKind.COPY_SIZE,
        FindingKind.UNWAITED,
        FindingKind.UNDER_WAY,
        FindingKind.UNFENCED_COPY,
    }
)


def _of_bulk_copies(kind: FindingKind, record: FindingRecord, context: Sequence[int], threads: tuple[int, int, int]) -> str:
    """What a thread did with an mbarrier or a bulk copy."""
    place = f"shared[{record.address - context[ContextWord.SHARED]:#x}..]"
    store = bool(record.extra >> EXTRA_STORE & 1)
    if kind is FindingKind.MBARRIER:
        return f"takes {place} for an mbarrier, which it is not"
    if kind is FindingKind.ARRIVED:
        return f"arrives at the mbarrier {place}, whose phase had all its arrivals and was not waited for"
    if kind is FindingKind.COPY_SIZE:
        return f"copies {record.extra} bytes to {place}, which is no multiple of 16"
    if kind is FindingKind.UNWAITED:
        return f"copies {record.extra} bytes to {place}, and the block ends before that was waited for"
    if kind is FindingKind.UNFENCED_COPY:
        did, instead = ("wrote", "") if store else ("read", ", and no mbarrier at which it arrived was waited for")
        if record.extra >> EXTRA_LATE & 1:
            instead = (
                ", by a load whose value is not used before the arrival at the mbarrier that hands it over; use the "
                "value first, or execute fence.proxy.async"
            )
        other = _text(unflatten(record.other & THREAD_MASK, threads))
        return f"copies to {place}, where thread {other} {did}, with no fence.proxy.async since{instead}"
    return f"copies to {place}, where thread {_text(unflatten(record.other, threads))} wrote before that was waited for"


def classify(record: FindingRecord, context: Sequence[int]) -> tuple[str, int]:
    """(`shared`, `local` or `param`, the offset there), or ("", address) for global memory."""
    code = record.extra >> EXTRA_SPACE & 0xFF
    shared = record.address - context[ContextWord.SHARED]
    local = record.address - context[ContextWord.LOCAL] - record.thread * context[ContextWord.LOCAL_BYTES]
    generic = code == SPACE_CODES["generic"]
    if code == SPACE_CODES["shared"] or (generic and 0 <= shared < context[ContextWord.SHARED_BYTES]):
        return "shared", shared
    if code == SPACE_CODES["local"] or (generic and 0 <= local < context[ContextWord.LOCAL_BYTES]):
        return "local", local
    if code == SPACE_CODES["param"]:
        return "param", record.address - context[ContextWord.PARAMETERS]
    return "", record.address & (1 << 64) - 1


def unflatten(index: int, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """A linear number of a thread or block as (x, y, z)."""
    return index % shape[0], index // shape[0] % shape[1], index // (shape[0] * shape[1])


def _grid(context: Sequence[int]) -> tuple[int, int, int]:
    return context[ContextWord.NCTAID_X], context[ContextWord.NCTAID_Y], context[ContextWord.NCTAID_Z]


def _text(index: tuple[int, int, int]) -> str:
    return f"({index[0]},{index[1]},{index[2]})"
