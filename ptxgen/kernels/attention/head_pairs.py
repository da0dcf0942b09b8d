"""What a thread does to pairs of values of a token's queries, keys and values before attention: it adds biases, rotates, and
writes into a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.rope.rope import Pair, load_pairs, neighbours, store_pairs, turned
from ptxgen.kernels.shape import ValueWidth

Row = Callable[[str, Value, Value], GlobalArray]
"""Where q, k or v (a name) has value `first` of a head: (name, head, first)."""

Keep = Callable[[str, Value, Value, int, Sequence[Pair]], None]
"""Writes pairs of a key or a value to the cache: (`k` or `v`, head, first, distance of the two of a pair, pairs)."""


@dataclass(frozen=True)
class HeadPairs(ValueWidth):
    """Fields as in RopeScatter. count: successive pairs that a thread takes, 1 or 2, a divisor of rotary_dim / 2. stored: opens
    the branch of those who may store; what they store is loaded and computed before it."""

    neox: bool
    bias: bool
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    count: int = 1
    stored: Callable[[], AbstractContextManager[Any]] = nullcontext
    value_dim: int | None = None

    def place(self, k: KernelBuilder, pair: Value) -> tuple[Value, Value]:
        """The head, as `write` numbers it, and the pair there, of pair number `pair` of all heads."""
        half, half_value, before = self.head_dim // 2, self.value_width // 2, self.heads + self.kv_heads
        head, i = pair // half, pair % half
        if half_value == half:
            return head, i
        of_value, rest = pair >= before * half, pair - before * half
        return k.select(of_value, rest // half_value + before, head), k.select(of_value, rest % half_value, i)

    def write(self, k: KernelBuilder, head: Value, i: Value, position: Value, row: Row, keep: Keep) -> None:
        """The pairs of a head from pair i on; the heads are numbered through: those of q, then of k, then of v. Values past
        rotary_dim that no bias is added to are not written in place, and those of q not looked at."""
        with k.when(head < self.heads):
            self._rotated(k, "q", head, i, position, row, keep)
        with k.otherwise():
            with k.when(head < self.heads + self.kv_heads):
                self._rotated(k, "k", head - self.heads, i, position, row, keep)
            with k.otherwise():
                self._pair(k, "v", head - (self.heads + self.kv_heads), i, position, row, keep, turn=False)

    def _rotated(self, k: KernelBuilder, name: str, head: Value, i: Value, position: Value, row: Row, keep: Keep) -> None:
        """Pairs of a head of q or k: such as are turned, or such past rotary_dim."""
        if self.rotary_dim == self.head_dim:
            self._pair(k, name, head, i, position, row, keep, turn=True)
        else:
            with k.when(i < self.rotary_dim // 2):
                self._pair(k, name, head, i, position, row, keep, turn=True)
            if self.bias or name != "q":  # else it stays as it is and goes nowhere
                with k.otherwise():
                    self._pair(k, name, head, i, position, row, keep, turn=False)

    def _pair(
        self, k: KernelBuilder, name: str, head: Value, i: Value, position: Value, row: Row, keep: Keep, *, turn: bool
    ) -> None:
        """The pairs of a head from pair i on: neighbours, unless they are turned in the style of neox."""
        first, distance = (i, self.rotary_dim // 2) if turn and self.neox else (i * 2, 1)
        place = row(name, head, first)
        pairs = load_pairs(k, place, distance, self.count)
        if self.bias:
            width = self.value_width if name == "v" else self.head_dim
            biases = load_pairs(k, getattr(k.arg, f"{name}_bias").at(head * width + first), distance, self.count)
            pairs = [(pair[0] + bias[0], pair[1] + bias[1]) for pair, bias in zip(pairs, biases, strict=True)]
        if turn:
            angles = neighbours(k.load_vector(k.arg.table[position, i, 0], 2 * self.count))
            pairs = [turned(k, pair, cosine, sine) for pair, (cosine, sine) in zip(pairs, angles, strict=True)]
        with self.stored():
            if turn or self.bias:
                store_pairs(k, place, distance, pairs)
            if name != "q":
                keep(name, head, first, distance, pairs)
