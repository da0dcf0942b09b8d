"""hw_dp4a on the residual stream of ranks that share a matrix by its rows: what a rank adds to its part of the stream goes to
the others at once, whose next products wait for it (HwDp4aType.parts). So no launch gathers it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import LaunchConfig, Signature, Work
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.formats import REPACKED, find
from ptxgen.kernels.collective.all_gather import MOST_RANKS
from ptxgen.kernels.collective.message import (
    Message,
    message_arguments,
    message_bounds,
    message_inputs,
    message_reference,
)
from ptxgen.kernels.gemv.chunks import Warp
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemvResidual
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.types import U64

SENT_FORMATS: Final = (find("Q4_K"), REPACKED["Q6_K_ALIGNED"], REPACKED["Q8_0_ALIGNED"])
"""The formats that have it in the catalogue: those of most models as they are loaded. Of others it is made by its class."""


@register(format=SENT_FORMATS)
@dataclass(frozen=True)
class HwDp4aGemvResidualSent(HwDp4aGemvResidual):
    """y += W x on quantised activations, and y goes to the other ranks: hw_dp4a_gemv_residual, with its bits, on each of
    several ranks, of which each has rows of its own of a matrix.

    y: f32[n], in place, this rank's part of the stream; w, digits, scales and sums as in hw_dp4a. y_numbers: u32[blocks],
    y_inbox: u64[2, ranks, n], y_inboxes: u64[ranks] and rank: u32 (collective/message.py): what hw_dp4a with `parts` takes as
    number (the first), inbox and rank. A launch on each rank is one message (LaunchConfig.ranks); between two that go into one
    inbox, all ranks must have received what came before the second (GatherDigits says why)."""

    name_pattern = "hw_dp4a_{format}_gemv_residual_sent"
    ranks: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "ranks", low=2, high=MOST_RANKS)
        if self.parts > 1:
            raise ArgumentError(f"{self.name} takes digits: parts must be 1, got {self.parts}")

    @classmethod
    def of(cls, product: HwDp4aGemvResidual, ranks: int) -> HwDp4aGemvResidualSent:
        """With the settings of the product that keeps its part."""
        return cls(**product.parameters(), format=product.format, ranks=ranks)

    @property
    def alone(self) -> HwDp4aGemvResidual:
        """The one that keeps its part."""
        settings = {name: value for name, value in self.parameters().items() if name != "ranks"}
        return HwDp4aGemvResidual(**settings, format=self.format)

    def signature(self) -> Signature:
        return super().signature() | message_arguments(self.n, self.ranks, self.launch().blocks)

    def launch(self) -> LaunchConfig:
        return replace(super().launch(), ranks=self.ranks)

    def _early(self, k: KernelBuilder, warp: Warp) -> list[Value | None]:
        warp.message = Message(k, self.ranks)
        return super()._early(k, warp)

    def _store_row(self, warp: Warp, y: GlobalArray, row: Value, sums: list[Value], before: Value | None) -> Value:
        total = super()._store_row(warp, y, row, sums, before)
        assert warp.message is not None
        warp.message.send(row, total)
        return total

    def _end(self, warp: Warp) -> None:
        assert warp.message is not None
        warp.message.end()

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        y = self._of_each(arguments, "reference")
        return {"y": y, **message_reference(arguments, y)}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        """Of a rank that of hw_dp4a_gemv_residual; words are those of any y that near."""
        y, bounds = (self._of_each(arguments, what) for what in ("reference", "tolerance"))
        return {"y": bounds, **message_bounds(arguments, y, bounds)}

    def _of_each(self, arguments: Mapping[str, Any], what: str) -> NDArray[np.float64]:
        """The y of this method of `alone`, of each rank."""
        alone = self.alone
        own = [name for name in arguments if name in alone.signature()]
        given = ({name: arguments[name][rank] for name in own} for rank in range(self.ranks))
        return np.stack([getattr(alone, what)(**one)["y"] for one in given])

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        of_each = [self.alone.inputs(rng) for _ in range(self.ranks)]
        stacked = {name: np.stack([one[name] for one in of_each]) for name in of_each[0]}
        return {**stacked, **message_inputs(rng, self.n, self.ranks, self.launch().blocks)}

    def work(self) -> Work:
        """Of a rank: that of the product, and each value to each other rank."""
        product = super().work()
        return Work(product.flops, product.bytes + U64.bytes * self.n * (self.ranks - 1))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[HwDp4aGemvResidualSent]:
        size = max(fixed["format"].block, 512)
        yield cls(k=size, n=5, digits=3, ranks=2, **cls._narrow(), **fixed)
        if fixed["format"].name == "Q4_K":
            yield cls(k=4096, n=9, digits=3, ranks=4, ring=2, **cls._narrow(), **fixed)
            yield cls(k=18944, n=3, digits=3, ranks=2, ring=2, **cls._narrow(), **fixed)  # a loop
