"""Activation digits of a rank's part of a row, made and sent to the other ranks with one launch, for products that take a row
in parts: these wait for the words themselves, so nobody puts them in their places first, and no launch ends between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.kernels.collective.gather_digits import GatherDigits, Word
from ptxgen.kernels.registry import register
from ptxgen.types import U32, U64


@register
@dataclass(frozen=True)
class SendDigits(GatherDigits):
    """digits, scales and sums of this rank's slice x of a row of n values, in its own memory, and as words in that of the
    others: gather_digits but for the words of others, for which it does not wait.

    All arguments as there. Of digits, scales, sums and squares the places of this rank's slice are written. A launch on each
    rank is one message (LaunchConfig.ranks), and its words are for hw_dp4a with `row_parts`, which takes the first of numbers,
    and inbox.

    **One inbox**, so that who receives knows where to look before it knows the number. Between two messages into it there must
    be another gather, or message, that every rank has waited for. Let rank A be ahead, and B still wait for words of message k.
    A sends message k + 1 behind the gather between, for which it has what B gave. B gave that behind its launches that waited
    for message k: they had ended. Where one launch both waits for message k and sends what is between (gated_hw_dp4a_..._sent),
    each block has received all of k before it has results, and the message between is whole when all blocks have sent."""

    name = "send_digits"
    inboxes = 1

    @property
    def gathered(self) -> dict[str, Array]:
        return {name: replace(array, partial=True) for name, array in super().gathered.items()}

    def _receive(self, k: KernelBuilder, place: Value, words: Sequence[Word], inbox: GlobalArray, number: Value) -> None:
        """Whoever reads them waits for them."""

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        """The very bits, as there."""
        whole = dict(super().reference(**arguments))
        for name in self.gathered:
            mine = arguments[name].copy()
            for rank in range(self.ranks):
                size = mine.shape[-1] // self.ranks
                own = slice(rank * size, (rank + 1) * size)
                mine[rank][..., own] = whole[name][rank][..., own]
            whole[name] = mine
        return whole

    def work(self) -> Work:
        """Of a rank: as there, of its own slice, and each word to each other rank."""
        gather, received = super().work(), self.words.count * (self.ranks - 1)
        return Work(gather.flops, gather.bytes - received * (U64.bytes + U32.bytes))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(n=64, ranks=2, digits=3, normed=True)
        yield cls(n=4096, ranks=4, digits=3)
        yield cls(n=36864, ranks=2, digits=2)  # two turns

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        inputs = super().inputs(rng)
        return inputs | {name: np.zeros_like(inputs[name]) for name in self.gathered}
