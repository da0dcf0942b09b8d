"""The embeddings of tokens: each one row of a quantised table, decoded on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.formats import FORMATS, Format, find
from ptxgen.kernels.gemv.iteration import IterationSpace, advance
from ptxgen.kernels.position import position_argument, position_value
from ptxgen.kernels.registry import GIVEN, register
from ptxgen.kernels.shape import MOST_ROWS, require, require_factor
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32, U8, U32

# Steps of the walk a block, one a warp.
WARPS = 4


@register(indirect=(False, True), m=[None], scale=[None, GIVEN])
@register(indirect=[True], m=[GIVEN], scale=[None, GIVEN])
@dataclass(frozen=True)
class EmbeddingLookup(KernelType):
    """Rows `token` of a quantised table as f32.

    y: f32[k], or f32[m, k] of m tokens; table: u8[rows, row_bytes]; token: u32 scalar below `rows`, or with `indirect` a buffer
    u32[1] or u32[m] that holds it; a token of `rows` or more there (argmax of logits with a NaN gives 0xFFFFFFFF) fills its
    row of y with NaN. The very values of gguf-py's dequantize. scale: what these are multiplied by; above 0, part of the
    text."""

    format: Format
    rows: int
    k: int
    indirect: bool = field(default=False, metadata=HIDDEN)
    m: int | None = field(default=None, kw_only=True)
    scale: float | None = field(default=None, kw_only=True)

    family = "token"

    @property
    def name(self) -> str:
        lookup = "embedding_lookup" if self.scale is None else "scaled_embedding_lookup"
        if self.m is not None:
            return f"batched_{lookup}"
        return f"{lookup}{'_indirect' if self.indirect else ''}"

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", find(self.format))
        require(self, "k", multiple=self.format.block)
        require(self, "rows")
        if self.m is not None:
            require(self, "m", high=MOST_ROWS)
            object.__setattr__(self, "indirect", True)
        if self.scale is not None:
            require_factor(self, "scale")

    @property
    def space(self) -> IterationSpace:
        """How warps go along a row of the table."""
        return IterationSpace(self.format, self.k)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of y."""
        return (self.k,) if self.m is None else (self.m, self.k)

    def signature(self) -> Signature:
        token = position_argument(self.indirect, 0, self.rows - 1)
        return {
            "y": write(F32, *self.shape),
            "table": read(U8, self.rows, self.format.row_bytes(self.k)),
            "token": token if self.m is None else read(U32, self.m, align=4),
        }

    def launch(self) -> LaunchConfig:
        steps = self.space.steps + (self.space.rest > 0)
        return LaunchConfig(grid=(-(-steps // WARPS), 1 if self.m is None else self.m), block=WARPS * WARP_SIZE)

    def emit(self, k: KernelBuilder) -> None:
        space = self.space
        lane = space.lane(k)
        step = k.ctaid.x * WARPS + k.warp
        with k.when(step * space.blocks + lane.block < self.k // self.format.block):
            table, token = k.arg.table, self._token(k)
            in_table = token < self.rows if self.indirect else None
            row = table.at(token if in_table is None else k.select(in_table, token, 0), 0)
            block = lane.in_row(advance(row, step, space.bytes))
            y = lane.in_vector(advance(self._result(k), step, space.values))
            for offset, weight in lane.decode(k, block, advance(block, lane.column, 1)):
                if self.scale is not None:
                    weight = weight * self.scale
                k.store(y[offset], weight if in_table is None else k.select(in_table, weight, float("nan")))

    def _token(self, k: KernelBuilder) -> Value:
        """The token of a block."""
        return position_value(k, "token", self.indirect) if self.m is None else k.load(k.arg.token[k.ctaid.y])

    def _result(self, k: KernelBuilder) -> GlobalArray:
        """Where a block's embedding starts."""
        result: GlobalArray = k.arg.y if self.m is None else k.arg.y.at(k.ctaid.y, 0)
        return result

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[np.float32]]:
        y = np.full((1 if self.m is None else self.m, self.k), np.nan, np.float32)
        for row, token in zip(y, np.asarray(arguments["token"]).reshape(-1), strict=True):
            if token < self.rows:
                row[:] = self.format.dequantize(arguments["table"][token])
                row *= np.float32(1.0 if self.scale is None else self.scale)
        return {"y": y.reshape(self.shape)}

    def tolerance(self, **arguments: Any) -> Mapping[str, float]:
        """None: decoding rounds as gguf-py does, and a scale is one product of f32."""
        return {"y": 0.0}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        tokens = rng.integers(self.rows, size=self.m, dtype=np.uint32) if self.m is not None else None
        table = self.format.random_blocks(rng, self.rows, self.k)
        token = np.uint32(rng.integers(self.rows))
        alone = np.full(1, token) if self.indirect else token
        return {
            "y": np.full(self.shape, np.nan, np.float32),
            "table": table,
            "token": alone if tokens is None else tokens,
        }

    def work(self) -> Work:
        """Counts one operation a value, which is less than any format needs but floats."""
        tokens = 1 if self.m is None else self.m
        return Work(flops=tokens * self.k, bytes=tokens * (self.format.row_bytes(self.k) + F32.bytes * self.k))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[EmbeddingLookup]:
        fixed.pop("m", None)
        fixed.pop("scale", None)
        yield cls(**fixed, format=FORMATS["Q6_K"], rows=3, k=256, scale=25.3)
        yield cls(FORMATS["Q8_0"], rows=3, k=96, m=2, scale=12.0)
        yield cls(FORMATS["Q6_K"], rows=5, k=3 * 256, m=3)
        yield cls(FORMATS["Q8_0"], rows=3, k=576, m=2)
        for format in FORMATS.values():
            if format.common:
                yield cls(**fixed, format=format, rows=5, k=3 * format.block)
            elif not fixed.get("indirect"):
                yield cls(**fixed, format=format, rows=3, k=2 * format.block)
            if fixed.get("indirect") or not format.common:
                continue  # decodes by the same lines
            if 576 % format.block == 0:
                yield cls(**fixed, format=format, rows=3, k=576)
            yield cls(**fixed, format=format, rows=2, k=3584)
