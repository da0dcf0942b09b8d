"""The look-up of 4-bit codes in a table of 16 signed bytes, by permutation of the bytes of constant words. Not a format."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import merge
from ptxgen.types import S32, U32

_INDICES = 0x77777777
_UPPER = 0x88888888
_IN_ORDER = 0x32103210

# prmt's selector for byte 0 of its first operand with the sign in the three bytes above; 0x1111 more for the next byte.
_SIGN_EXTENDED = 0x8880


class CodeTable:
    """A table of 16 numbers that fit a signed byte, as four constant words."""

    def __init__(self, values: tuple[int, ...]) -> None:
        if len(values) != 16 or not all(-128 <= value < 128 for value in values):
            raise ValueError(f"a code table has 16 signed bytes, got {values}")
        self.values = values
        stored = bytes(value & 0xFF for value in values)
        self._words = tuple(int.from_bytes(stored[i : i + 4], "little") for i in range(0, 16, 4))

    def unsigned(self) -> CodeTable:
        """The table whose bytes are 128 more, without a sign."""
        return CodeTable(tuple(value % 256 - 128 for value in self.values))

    def look_up(self, k: KernelBuilder, codes: Value, count: int = 4) -> list[Value]:
        """The table's bytes at the lowest `count` (a multiple of 4, at most 8) nibbles of a u32, four to a u32 in their order.

        The three low bits of a nibble select from either half of the table, its top bit one of the two: prmt has eight bytes to
        select from, and would spread a sign if it saw the top bit."""
        first, second, third, fourth = self._words
        indices, halves = codes & _INDICES, merge(k, codes >> 1, _UPPER >> 1, _IN_ORDER)
        looked_up = []
        for shift in range(0, 4 * count, 16):
            index, half = (one >> shift if shift else one for one in (indices, halves))
            low = k.prmt(first, second, index, result=U32)
            high = k.prmt(third, fourth, index, result=U32)
            looked_up.append(k.prmt(low, high, half, result=U32))
        return looked_up

    def look_up_halves(self, k: KernelBuilder, codes: Sequence[Value]) -> list[Value]:
        """The table's bytes, four to a u32: those of the low nibbles of all words, then those of the high ones."""
        pairs = [self.look_up(k, word, 8) for word in codes]
        return [k.prmt(first, second, order, result=U32) for order in (0x6420, 0x7531) for first, second in pairs]

    def decode(self, k: KernelBuilder, codes: Value, width: int) -> list[tuple[Value, Value]]:
        """The f32 numbers of `width` (1, 2 or 4) bytes of codes, by byte: of its low and of its high nibble."""
        words = self.look_up(k, codes, max(4, 2 * width))

        def number(i: int) -> Value:
            return k.f32(k.prmt(words[i // 4], 0, _SIGN_EXTENDED + 0x1111 * (i % 4), result=S32))

        return [(number(2 * i), number(2 * i + 1)) for i in range(width)]


IQ4 = CodeTable((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))
"""The levels of IQ4_NL and IQ4_XS (kvalues_iq4nl of ggml-common.h)."""
