"""The parts of a plan as a table in shared memory, so that what a warp does with a part is written once, whichever it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Element, GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.persistent.schedule import Part
from ptxgen.kernels.persistent.segments import Segments
from ptxgen.types import U32, U64, DType

NEVER = 2**32 - 1


@dataclass(frozen=True)
class StreamPart:
    """A part of the plan and the arguments that its rows are in, two of gate and up, which a warp takes together; the argument
    that their products go to."""

    part: Part
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
    """The words of a part."""

    PLACE = 0  # of the first matrix's weights, from the part's first row on: u64
    SECOND = 2  # of the second's
    RESULT = 4  # of the result, from the part's first row on: u64
    GROUPS = 6
    START = 7
    ROWS = 8  # of the part
    HEIGHT = 9  # rows of a group, of a matrix
    TAKEN = 10  # rows that a warp takes together, of all its matrices
    ROW_BYTES = 11
    SEGMENTS = 12  # of a row
    BYTES = 13  # of a segment
    LAST_BYTES = 14
    WORDS = 16


ENTRY_BYTES = 4 * Field.WORDS


class PartTable:
    """The parts in their order, and after them one without end that has no bytes."""

    def __init__(self, k: KernelBuilder, parts: Sequence[StreamPart], warp: Value, warps: int) -> None:
        """warp: which of the `warps` of the grid it is."""
        self.k, self.parts, self.warp, self.warps = k, parts, warp, warps
        self._table = k.shared(U32, (len(parts) + 1) * Field.WORDS)
        with k.when(k.tid.x == 0):
            for number, one in enumerate(parts):
                self._write(number, self._words(one))
            idle: dict[int, int] = {
                Field.GROUPS: NEVER, Field.ROWS: NEVER, Field.HEIGHT: 1, Field.TAKEN: 1, Field.SEGMENTS: NEVER,
            }  # fmt: skip
            self._write(len(parts), [k.u32(idle.get(word, 0)) for word in range(Field.WORDS)])
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

    def word(self, entry: Value, field: Field, type: DType = U32) -> Value:
        """A field of the part at this address."""
        value: Value = self.k.load(Element("shared", entry.register, 4 * field, type))
        return value

    def first_group(self, entry: Value) -> Value:
        """The number of the first group of a part that is the warp's, if the part has so many; others are `warps` further."""
        k, start = self.k, self.word(entry, Field.START)
        return k.select(self.warp < start, self.warp + self.warps, self.warp) - start

    def result(self, entry: Value, like: GlobalArray) -> GlobalArray:
        """Where the products of the part go."""
        return replace(like, base=self.word(entry, Field.RESULT, U64), shape=(1,))

    def _words(self, one: StreamPart) -> list[Value]:
        k, part, segments = self.k, one.part, one.segments
        places = [getattr(k.arg, name).base for name in one.weights]
        before = part.first * segments.row_bytes
        places = [place + before if before else place for place in places]
        result = getattr(k.arg, one.result).base
        pointers = [places[0], places[-1], result + 4 * part.first if part.first else result]
        halves = [half for pointer in pointers for half in k.write("mov", [pointer], result=U32)]
        numbers: dict[int, int] = {
            Field.GROUPS: part.groups, Field.START: part.start, Field.ROWS: part.rows, Field.HEIGHT: part.height,
            Field.TAKEN: one.rows, Field.ROW_BYTES: segments.row_bytes, Field.SEGMENTS: segments.count,
            Field.BYTES: segments.bytes, Field.LAST_BYTES: segments.last_bytes,
        }  # fmt: skip
        return [*halves, *(k.u32(numbers.get(word, 0)) for word in range(len(halves), Field.WORDS))]

    def _write(self, number: int, words: Sequence[Value]) -> None:
        for first in range(0, Field.WORDS, 4):
            self.k.store(self._table[number * Field.WORDS + first], words[first : first + 4])
