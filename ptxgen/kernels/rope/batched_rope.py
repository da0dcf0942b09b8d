"""Rotary position embedding of several tokens in one launch, each at a position of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, LaunchConfig, Signature, Work, read, update
from ptxgen.kernels.registry import Entry, add
from ptxgen.kernels.rope.rope import Rope
from ptxgen.kernels.rope.table import rope_table
from ptxgen.kernels.shape import MOST_ROWS, require
from ptxgen.types import F32, U32


@dataclass(frozen=True)
class BatchedRope(Rope):
    """Rotate the heads of m tokens, token i by the angles of positions[i], in place.

    x: f32[m, heads, head_dim]; positions: u32[m]; the rest as in rope, and a token has the bits that rope gives it. A token
    whose position is max_len or more is left as it is.
    """

    m: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "m", high=MOST_ROWS)

    @property
    def name(self) -> str:
        return f"batched_rope{'_neox' if self.neox else ''}"

    def signature(self) -> Signature:
        single = super().signature()
        return {
            "x": update(F32, self.m, self.heads, self.head_dim),
            "table": single["table"],
            "positions": read(U32, self.m, align=4),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=(super().launch().grid[0], self.m), block=super().launch().block)

    def emit(self, k: KernelBuilder) -> None:
        row = k.ctaid.y
        self.turn(k, k.arg.x.at(row, 0, 0), k.load(k.arg.positions[row]))

    def _rows(self, arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The arguments of rope for each token."""
        for x, position in zip(arguments["x"], arguments["positions"], strict=True):
            yield {"x": x, "table": arguments["table"], "position": position}

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {"x": np.stack([Rope.reference(self, **row)["x"] for row in self._rows(arguments)])}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        return {"x": np.stack([Rope.tolerance(self, **row)["x"] for row in self._rows(arguments)])}

    def work(self) -> Work:
        single = super().work()
        return Work(flops=self.m * single.flops, bytes=self.m * (single.bytes + U32.bytes))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, heads=9, head_dim=64, max_len=100, m=3)
        yield cls(**fixed, heads=8, head_dim=128, max_len=33, m=8)
        yield cls(**fixed, heads=2, head_dim=64, max_len=7, rotary_dim=32, m=5)
        yield cls(**fixed, heads=3, head_dim=96, max_len=1, m=1)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {
            "x": rng.normal(0.0, 1.0, (self.m, self.heads, self.head_dim)).astype(np.float32),
            "table": rope_table(self.max_len, self.rotary_dim, 1e5),
            "positions": rng.integers(self.max_len, size=self.m, dtype=np.uint32),
        }


for _neox in (False, True):
    add(Entry(f"batched_rope{'_neox' if _neox else ''}", BatchedRope, {"neox": _neox, "indirect": True}))
