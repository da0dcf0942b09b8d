"""The parts of a plan as a table in shared memory, so that what a warp does with a part is written once, whichever it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element
from ptxgen.dsl.value import Value
from ptxgen.kernels.persistent.schedule import SchedulePart
from ptxgen.kernels.persistent.segments import Segments
from ptxgen.types import U32

NEVER = 2**32 - 1


@dataclass(frozen=True)
class StreamPart:
    """A part of the plan and the arguments that its rows are in, two of gate and up, which a warp takes together; the argument
    that their products go to."""

    part: SchedulePart
    segments: Segments
    weights: tuple[str, ...]
    result: str

    @property
    def rows(self) -> int:
        """Rows that a warp multiplies together, of all its matrices."""
        return self.part.height * len(self.weights)

    def alike(self, other: StreamPart) -> bool:
        """Whether a warp does the same with both."""
        mine, others = ((one.segments, one.part.first, one.part.height, len(one.weights)) for one in (self, other))
        return mine == others


class Field(IntEnum):
    """The words of a part. Addresses are not among them: what a kernel reads before it waits for the launch before it has to
    come from its own constant arguments (conformance/dependent_launch.py)."""

    NUMBER = 0  # of the part
    GROUPS = 1
    START = 2
    FIRST = 3  # row
    ROWS = 4
    HEIGHT = 5  # rows of a group, of a matrix
    TAKEN = 6  # rows that a warp takes together, of all its matrices
    ROW_BYTES = 7
    SEGMENTS = 8  # of a row
    BYTES = 9  # of a segment
    LAST_BYTES = 10
    WORDS = 12


ENTRY_BYTES = 4 * Field.WORDS


class PartTable:
    """The parts in their order, and after them one without end that has no bytes."""

    def __init__(self, k: KernelBuilder, parts: Sequence[StreamPart], warp: Value, warps: int) -> None:
        """warp: which of the `warps` of the grid it is."""
        self.k, self.parts, self.warp, self.warps = k, parts, warp, warps
        self._table = k.shared(U32, (len(parts) + 1) * Field.WORDS)
        idle: dict[int, int] = {
            Field.NUMBER: len(parts),
            Field.GROUPS: NEVER,
            Field.ROWS: NEVER,
            Field.HEIGHT: 1,
            Field.TAKEN: 1,
            Field.SEGMENTS: NEVER,
        }
        with k.when(k.tid.x == 0):
            for number, words in enumerate([*(_words(*one) for one in enumerate(parts)), idle]):
                values = [k.u32(words.get(word, 0)) for word in range(Field.WORDS)]
                for first in range(0, Field.WORDS, 4):
                    k.store(self._table[number * Field.WORDS + first], values[first : first + 4])
        k.barrier()

    def entry(self, number: Value | int) -> Value:
        """The address of a part."""
        start = self.k.symbol_address(self._table.name)
        return start + number * ENTRY_BYTES if isinstance(number, Value) or number else start

    def entries(self, first: int, count: int) -> Iterator[Value]:
        """Write a loop over so many parts, if they are several; gives the address of each."""
        if count == 1:
            yield self.entry(first)
            return
        for number in self.k.strided(first, first + count):
            yield self.entry(number)

    def word(self, entry: Value, field: Field) -> Value:
        """A field of the part at this address."""
        value: Value = self.k.load(Element("shared", entry.register, 4 * field, U32))
        return value

    def first_group(self, entry: Value) -> Value:
        """The number of the first group of a part that is the warp's, if the part has so many; others are `warps` further."""
        k, start = self.k, self.word(entry, Field.START)
        return k.select(self.warp < start, self.warp + self.warps, self.warp) - start

    def argument(self, entry: Value, names: Sequence[str]) -> Value:
        """The address that the part has of these arguments, of which each is one part's, in the order of parts; that of any for
        the part without end."""
        k = self.k
        bases: list[Value] = [getattr(k.arg, name).base for name in names]
        chosen = bases[0]
        if len(set(names)) > 1:
            number = self.word(entry, Field.NUMBER)
            for at, (name, base) in enumerate(zip(names, bases, strict=True)):
                if at and name != names[at - 1]:
                    chosen = k.select(number >= at, base, chosen)
        return chosen


def _words(number: int, one: StreamPart) -> dict[int, int]:
    part, segments = one.part, one.segments
    return {
        Field.NUMBER: number,
        Field.GROUPS: part.groups,
        Field.START: part.start,
        Field.FIRST: part.first,
        Field.ROWS: part.rows,
        Field.HEIGHT: part.height,
        Field.TAKEN: one.rows,
        Field.ROW_BYTES: segments.row_bytes,
        Field.SEGMENTS: segments.count,
        Field.BYTES: segments.bytes,
        Field.LAST_BYTES: segments.last_bytes,
    }
