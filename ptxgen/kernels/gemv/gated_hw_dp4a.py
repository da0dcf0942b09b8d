"""hw_dp4a of the gate and of the up projection with SwiGLU and the digits of its result in one launch, for a down projection on
int8 digits. A warp has the rows of one number of both matrices, so nobody waits for another's product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.value import Value
from ptxgen.formats import find
from ptxgen.kernels.activation.swiglu import FusedSwiglu
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.hw_dp4a_type import NO_RING, blocks_at_once
from ptxgen.kernels.gemv.joined_hw_dp4a import JOINED
from ptxgen.kernels.gemv.row_digits import RowDigits
from ptxgen.kernels.quantize.activation_digits import BLOCK
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import WARP_SIZE

WORTH_IT = 0.8
"""The share of the multiprocessors that must be busy on average. On an H100, in steps: 448 groups (85 %) won 1.5 %, 280 (53 %)
lost 5 %, and with one digit 256 (97 %) lost 4 %."""

USUAL, FEWEST = 8, 4
WARPS = (16, USUAL, FEWEST)
"""Of a block. Four for the 448 groups of a model of 8B, which eight have in two rounds, won 16 us of a step of 1650 (H200); for
the 592 of the 7B, whose blocks share groups, 34 of 1569."""

MOST_STEPS = 8
"""Of a row: those of Q8_0_ALIGNED and 4096 values, of which this won 32 us of 2337 (H200)."""

TWO_PAIRS = (find("Q8_0_ALIGNED"), 3)
"""Format and digits of which a lane has the registers for the loads of two pairs: other formats, and two digits, spill some."""

STEEPEST = 1.1
"""No slope of silu is more than that: 1.0999."""


def _memory_bounds(kernel: HwDp4aGemv) -> bool:
    """Whether a row is of more steps than are loaded ahead: of few weights a step, Q8_0's above all."""
    return kernel.fragments.steps > kernel.ahead


@register(format=JOINED)
@dataclass(frozen=True)
class GatedHwDp4aGemv(RowDigits):
    """y = silu(W x) * (W2 x) on quantised activations, and the digits of y: hw_dp4a for gate and for up, fused_swiglu_digits,
    bit for bit and in one launch.

    y: f32[n], n a multiple of 32; w, w2: u8[n, row_bytes], gate and up; digits, scales and sums as in hw_dp4a. y_digits: s8[1,
    out_digits, n], y_scales: f32[1, n / 32], y_sums: s32[1, n / 32]. counters: see RowDigits, where `pairs` of rows count as
    rows_per_warp does: a warp takes so many pairs at a time, which share each read of the activations."""

    paced = True
    weights = ("w", "w2")
    pairs: int = field(default=1, kw_only=True)
    rows_per_warp: int = field(default=2, init=False)

    name_pattern = "gated_hw_dp4a_{format}_gemv"
    bit_free = (*(name for name in RowDigits.bit_free if name != "rows_per_warp"), "pairs")

    def __post_init__(self) -> None:
        require(self, "pairs", high=4)
        object.__setattr__(self, "rows_per_warp", self.pairs * len(self.weights))
        super().__post_init__()

    def with_weight_ring(self) -> Self | None:
        """Two blocks of four warps become one, whose rings have the room of the activations of the second. Where memory bounds
        the product, loads into registers are faster (Q8_0, H200: 33 us for 36). A third slot won 4 to 8 us of a step of the 7B
        and the 8B, and lost 4 of the 1B's, whose rows come in one part."""
        if _memory_bounds(self):
            return None
        wider = replace(self, num_warps=USUAL, **NO_RING) if self.num_warps < USUAL else self
        fits = wider.launch().blocks <= blocks_at_once(wider.launch().threads, wider.threads_at_once)
        return (wider if fits else self).ringed(3 if self.ring_layout.parts > 1 else 2)

    @classmethod
    def suited(cls, gate: HwDp4aGemv, digits: int) -> GatedHwDp4aGemv | None:
        """The one for a plain product, or None where two launches are faster: with one digit, which memory alone bounds; rows
        of many steps; and groups of 32 results, a block each, which leave many multiprocessors idle. A block has as many warps
        as let all groups be there at once. Where there are too many groups for that, blocks share them, so that each of those
        that are there at once has as many rows. Where memory bounds the product, there are not too many, and registers are
        enough (TWO_PAIRS), eight warps of two pairs, in two rounds: with what is asked for ahead (asked_rows.py) they won 53 us
        of 2844 of the 8B in Q8_0 and 8 of 618 of the 1B (H100), without 9 of 2213 (H200); the 592 groups of the 7B lost 13 of
        2703."""
        groups, shares = gate.n // BLOCK, gate.fragments.shares

        def at_once(warps: int) -> int:
            return blocks_at_once(warps * WARP_SIZE, gate.threads_at_once)

        idle = at_once(USUAL) < groups < WORTH_IT * at_once(FEWEST)
        if gate.n % BLOCK or gate.digits == 1 or gate.fragments.steps > MOST_STEPS or idle:
            return None
        fitting = (warps for warps in WARPS if groups <= at_once(warps) and warps * WARP_SIZE <= gate.threads_at_once)
        warps = min(next(fitting, FEWEST), BLOCK // shares)
        rows = BLOCK if groups <= at_once(FEWEST) else -(-gate.n // at_once(FEWEST))
        pairs = 1
        if _memory_bounds(gate) and (gate.format, gate.digits) == TWO_PAIRS and groups <= at_once(FEWEST):
            warps, pairs = USUAL, 2
        turns = max(1, -(-rows // (warps * shares * pairs)))
        if turns * shares * pairs > WARP_SIZE:
            return None
        settings = {**gate.parameters(), "num_warps": warps, "turns": turns, "pairs": pairs, **NO_RING}
        del settings["rows_per_warp"]
        return cls(**settings, format=gate.format, out_digits=digits)

    def sent(self, ranks: int) -> KernelType | None:
        from ptxgen.kernels.gemv.gated_sent import GatedHwDp4aGemvSent  # is a GatedHwDp4aGemv itself

        return GatedHwDp4aGemvSent.of(self, ranks)

    @property
    def swiglu(self) -> FusedSwiglu:
        """The kernel that makes y of the products."""
        return FusedSwiglu(n=self.n)

    def signature(self) -> Signature:
        arguments = super().signature()
        return {**arguments, "w2": arguments["w"]}

    def result(self, k: KernelBuilder, sums: list[Value], loaded: Value | None) -> Value:
        return self.swiglu.compute(k, *sums)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        (gate, _), (up, _) = self._products(arguments)
        y = self.swiglu.exact(gate, up)
        return {"y": y, **self.digits_of(y), **self.counters_again()}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        """Gate and up are off as in hw_dp4a, which silu carries on by its slope. Then SwiGLU is off as in fused_swiglu,
        relative to what is carried on, too. The digits are those of any y that near."""
        (gate, gate_off), (up, up_off) = self._products(arguments)
        y, most_up = self.swiglu.exact(gate, up), np.abs(up) + up_off
        carried = STEEPEST * gate_off * most_up + np.abs(self.swiglu.exact(gate, up_off))
        bound = carried * (1 + 2.0**-20) + self.swiglu.bound(gate, most_up) + np.finfo(np.float32).tiny
        return {"y": bound, **self.digit_bounds(y, bound), **self.counters_again()}

    def _products(self, arguments: Mapping[str, Any]) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Of each matrix the product, and how far it may be off."""
        products = []
        for name in self.weights:
            one = {**arguments, "w": arguments[name]}
            products.append((super().reference(**one)["y"], super().tolerance(**one)["y"]))
        return products

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return super().inputs(rng) | {"w2": self.format.random_blocks(rng, self.n, self.k)}

    def work(self) -> Work:
        """A matrix more, and SwiGLU without what it reads and writes."""
        one = super().work()
        flops = one.flops + 2 * self.k * self.n + self.swiglu.work().flops
        return Work(flops, one.bytes + self.n * self.format.row_bytes(self.k))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[GatedHwDp4aGemv]:
        three = fixed | {"digits": 3, "out_digits": 3}
        yield cls(k=max(fixed["format"].block, 3 * BLOCK), n=32, num_warps=2, pairs=2, **three)  # two blocks a group
        if fixed["format"].name == "Q4_K":
            yield cls(k=2048, n=96, num_warps=8, turns=8, digits=2, out_digits=3, **fixed)  # half of a block is past the end
            yield cls(k=2048, n=96, num_warps=4, turns=7, ring=2, **three)  # blocks that share groups
            yield cls(k=4096, n=32, num_warps=8, turns=4, ring=3, normed=True, row_parts=2, **three)
            yield cls(k=18944, n=32, digits=1, out_digits=2, num_warps=2, **fixed)  # a loop
            yield cls(k=1536, n=64, digits=2, out_digits=1, num_warps=8, turns=2, **fixed)  # a partial step alone
        if fixed["format"].name == "Q8_0":
            yield cls(k=896, n=32, num_warps=4, turns=4, **three)  # a partial step after others
