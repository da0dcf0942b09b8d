"""What a layer does between its attention and that of the next one, for one token, in one launch whose blocks stay: the bits of
the kernels that do it one after another. Weights flow on while blocks wait for each other (weight_stream.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Scalar, Signature, read, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.errors import ArgumentError, NoRoom
from ptxgen.formats import find
from ptxgen.kernels.gemv.shared_planes import Layout
from ptxgen.kernels.norm.rmsnorm import LARGEST_ROW
from ptxgen.kernels.norm.row import THREADS
from ptxgen.kernels.persistent.part_table import PartTable, StreamPart
from ptxgen.kernels.persistent.products import Products
from ptxgen.kernels.persistent.propagation import LayerBound
from ptxgen.kernels.persistent.schedule import parts_of
from ptxgen.kernels.persistent.segments import PIECE, Segments
from ptxgen.kernels.persistent.staged_activations import StagedActivations, layout_for
from ptxgen.kernels.persistent.stages import Goal, Source, Stage, StageMatrix
from ptxgen.kernels.persistent.weight_stream import WeightStream
from ptxgen.kernels.quantize import int8_planes
from ptxgen.kernels.quantize.int8_planes import BLOCK, LARGEST
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.target import ALL, WARP_SIZE, Target
from ptxgen.types import F32, U8, U32

STATIC_SHARED: Final = 2048
"""Bytes of shared memory that are left to what no setting sizes: the table of parts, sums of warps."""


@register
@dataclass(frozen=True)
class PersistentLayer(KernelType):
    """x += Wo a; g = silu(Wg n(x)) * (Wu n(x)); x += Wd g; then, with `queries`, yq = Wq m(x), yk = Wk m(x), yv = Wv m(x): of a
    transformer layer what follows its attention, and what comes before that of the next layer, for one token; n and m are
    RMSNorms.

    x: f32[hidden], the residual stream, in place; digits: s8[1, attended_digits, attended], scales: f32[1, attended / 32],
    sums: s32[1, attended / 32]: what attention gave, a; gated: f32[ffn], where g goes; ffn_gamma, next_gamma: f32[hidden]; eps:
    f32 scalar; wo, wg, wu, wd, wq, wk, wv: u8[n, row_bytes] of the formats attn_output, ffn_gate (gate and up), ffn_down,
    attn_q, attn_k and attn_v; yq: f32[queries]; yk, yv: f32[keys]; arrivals: u32[2], zeros before and after.

    Every value has the bits that it has by hw_dp4a, rmsnorm_digits and fused_swiglu_digits. n(x), g and m(x) are multiplied as
    gate_digits, down_digits and next_digits planes. `blocks` blocks must be on the GPU at once. A warp multiplies up to
    rows_per_warp rows together, which share what is read of the activations, and has a pipeline of `pipeline_stages` segments
    of about 2304 bytes in shared memory."""

    family: ClassVar[str] = "layer"
    name = "persistent_layer"
    waits_inside = True
    least_sm = 80
    most_code = 168 * 1024
    """The text of nine kernels, whose loops fit the caches one by one."""
    bit_free = ("blocks", "num_warps", "rows_per_warp", "pipeline_stages")
    hidden: int
    attended: int
    ffn: int
    attn_output: str
    ffn_gate: str
    ffn_down: str
    attn_q: str = ""
    attn_k: str = ""
    attn_v: str = ""
    queries: int = 0
    keys: int = 0
    attended_digits: int = field(default=3, kw_only=True)
    gate_digits: int = field(default=3, kw_only=True)
    down_digits: int = field(default=3, kw_only=True)
    next_digits: int = field(default=3, kw_only=True)
    blocks: int = field(kw_only=True)
    num_warps: int = field(default=8, kw_only=True)
    rows_per_warp: int = field(default=4, kw_only=True)
    pipeline_stages: int = field(default=8, kw_only=True)

    def __post_init__(self) -> None:
        require(self, "hidden", multiple=BLOCK, high=LARGEST_ROW)
        require(self, "attended", "ffn", multiple=BLOCK)
        require(self, "queries", "keys", low=0)
        require(self, "attended_digits", "gate_digits", "down_digits", "next_digits", high=max(LARGEST))
        require(self, "blocks", high=1024)
        require(self, "num_warps", multiple=THREADS // WARP_SIZE, high=32)
        require(self, "rows_per_warp", low=2, high=8)
        require(self, "pipeline_stages", low=self.rows_per_warp, high=64)
        named = [bool(name) for name in (self.attn_q, self.attn_k, self.attn_v)]
        if any(named) != bool(self.queries) or any(named[1:]) != bool(self.keys) or named[1] != named[2]:
            raise ArgumentError(
                f"{self.name}: attn_q goes with queries, attn_k and attn_v with keys and these with queries; got "
                f"attn_q={self.attn_q!r}, attn_k={self.attn_k!r}, attn_v={self.attn_v!r}, queries={self.queries}, "
                f"keys={self.keys}"
            )
        for stage in self.stages:
            for matrix in stage.matrices:
                if not matrix.format.packed_width:
                    raise ArgumentError(f"{self.name}: {matrix.format} has no packed 8-bit codes")
                matrix.format.row_bytes(stage.k)
        if not self.targets():
            most = max(target.max_shared for target in ALL)
            raise NoRoom(
                f"{self.name}: activations and pipelines take {self.launch().dynamic_shared} bytes of shared memory and "
                f"{STATIC_SHARED} more; a block has {most} at most; take fewer stages, rows_per_warp or num_warps"
            )

    def targets(self) -> tuple[Target, ...]:
        """Those whose blocks may have as much shared memory."""
        return tuple(target for target in super().targets() if self.runs_on(target))

    def runs_on(self, gpu: Target) -> bool:
        """Whether this GPU has the instructions, and as much shared memory for a block."""
        return super().runs_on(gpu) and self.launch().dynamic_shared + STATIC_SHARED <= gpu.max_shared

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """What blocks do between two of their barriers."""
        gate = StageMatrix(find(self.ffn_gate), self.ffn, ("wg", "wu"), "gated")
        stages = [
            Stage(Source.DIGITS, Goal.STREAM, self.attended, self.attended_digits, (self._onto(self.attn_output, "wo"),)),
            Stage(Source.NORM, Goal.GATED, self.hidden, self.gate_digits, (gate,), "ffn_gamma"),
            Stage(Source.GATED, Goal.STREAM, self.ffn, self.down_digits, (self._onto(self.ffn_down, "wd"),)),
        ]
        named = ((self.attn_q, self.queries, "q"), (self.attn_k, self.keys, "k"), (self.attn_v, self.keys, "v"))
        following = tuple(StageMatrix(find(name), n, (f"w{of}",), f"y{of}") for name, n, of in named if name)
        if following:
            stages.append(Stage(Source.NORM, Goal.OWN, self.hidden, self.next_digits, following, "next_gamma"))
        return tuple(stages)

    def _onto(self, format: str, weights: str) -> StageMatrix:
        return StageMatrix(find(format), self.hidden, (weights,), "x")

    @property
    def warps(self) -> int:
        """Warps of the grid."""
        return self.blocks * self.num_warps

    @property
    def scratch(self) -> tuple[str, ...]:
        return ("gated", "arrivals")

    @property
    def activation_bytes(self) -> int:
        """Bytes of shared memory for the activations of any stage."""
        most = max(self._layout(stage).bytes for stage in self.stages)
        return -(-most // PIECE) * PIECE

    def plan(self, stage: Stage) -> tuple[StreamPart, ...]:
        """What the warps multiply in a stage, in this order."""
        highest = self.rows_per_warp // max(len(matrix.weights) for matrix in stage.matrices)
        parts = parts_of([matrix.n for matrix in stage.matrices], self.warps, highest)
        of = [stage.matrices[part.matrix] for part in parts]
        return tuple(
            StreamPart(part, Segments(one.format, stage.k), one.weights, one.result)
            for part, one in zip(parts, of, strict=True)
        )

    def _layout(self, stage: Stage) -> Layout:
        return layout_for([matrix.format for matrix in stage.matrices], stage.k, stage.digits)

    @property
    def _stage_bytes(self) -> int:
        return max(part.segments.stage_bytes for stage in self.stages for part in self.plan(stage))

    def signature(self) -> Signature:
        arguments: Signature = {
            "x": update(F32, self.hidden),
            "gated": write(F32, self.ffn),
            **{matrix.result: write(F32, matrix.n) for matrix in self._following},
            **int8_planes.arrays(1, self.attended_digits, self.attended, "in"),
        }
        for stage in self.stages:
            if stage.gamma:
                arguments[stage.gamma] = read(F32, self.hidden, constant=True)
            for matrix in stage.matrices:
                for name in matrix.weights:
                    arguments[name] = read(U8, matrix.n, matrix.format.row_bytes(stage.k), constant=True)
        return {**arguments, "arrivals": update(U32, 2, zeros=True), "eps": Scalar(F32, low=0.0)}

    @property
    def _following(self) -> tuple[StageMatrix, ...]:
        return self.stages[3].matrices if len(self.stages) > 3 else ()

    def launch(self) -> LaunchConfig:
        pipeline = self.num_warps * self.pipeline_stages * self._stage_bytes
        return LaunchConfig(
            grid=self.blocks,
            block=self.num_warps * WARP_SIZE,
            dynamic_shared=self.activation_bytes + pipeline,
            cooperative=True,
        )

    def emit(self, k: KernelBuilder) -> None:
        start = k.symbol_address(k.dynamic_shared(U32).name)
        plans = [self.plan(stage) for stage in self.stages]
        warp = k.mad(k.warp, self.blocks, k.ctaid.x)  # neighbours are of different blocks: all have as much to do
        table = PartTable(k, [part for plan in plans for part in plan], warp, self.warps)
        pipeline = k.mad(k.warp, self.pipeline_stages * self._stage_bytes, start + self.activation_bytes)
        stream = WeightStream(k, table, pipeline, self.pipeline_stages)
        self._fetch_gammas(k)
        k.wait_for_launch_before()
        done = 0
        for number, (stage, plan) in enumerate(zip(self.stages, plans, strict=True)):
            if number:
                k.grid_barrier(k.arg.arrivals, len(self.stages) - 1)
            activations = StagedActivations(k, self._layout(stage), start)
            self._stage(k, stage, activations)
            k.barrier()
            for alike in _runs(plan):
                products = Products(k, stage, alike[0], activations, stream)
                for entry in table.entries(done, len(alike)):
                    products.add(entry)
                done += len(alike)

    def _fetch_gammas(self, k: KernelBuilder) -> None:
        """Gammas come from far, because the weights of a model push them out of the cache from token to token."""
        line = 32
        with k.when(k.ctaid.x == 0):
            for i in k.strided(k.tid.x, self.hidden // line, step=k.threads):
                for stage in self.stages:
                    if stage.gamma:
                        k.prefetch(getattr(k.arg, stage.gamma)[i * line].address, space="global", level="L2")

    def _stage(self, k: KernelBuilder, stage: Stage, activations: StagedActivations) -> None:
        match stage.source:
            case Source.DIGITS:
                activations.copy(k.arg.digits, k.arg.scales, k.arg.sums)
            case Source.NORM:
                activations.normalise(self.hidden, k.arg.x, getattr(k.arg, stage.gamma))
            case Source.GATED:
                activations.quantise(k.arg.gated)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {**LayerBound(self.stages, arguments).exact(), "arrivals": np.zeros(2, np.uint32)}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        return {**LayerBound(self.stages, arguments).bounds(), "arrivals": 0.0}

    def work(self) -> Work:
        weights = sum(
            matrix.n * len(matrix.weights) * matrix.format.row_bytes(stage.k)
            for stage in self.stages
            for matrix in stage.matrices
        )
        flops = sum(2 * stage.k * matrix.n * len(matrix.weights) for stage in self.stages for matrix in stage.matrices)
        given = self.attended_digits * self.attended + 8 * self.attended // BLOCK
        results = 4 * (3 * self.hidden + 2 * self.ffn + sum(matrix.n for matrix in self._following))
        return Work(flops=flops, bytes=weights + given + results)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """A stream of size 1, activations of which one is massive, and weights that keep the size."""
        from ptxgen.kernels.accuracy import with_outlier

        attended = int8_planes.quantize(with_outlier(rng, 1, self.attended), self.attended_digits)
        given: dict[str, Any] = {
            "x": rng.standard_normal(self.hidden).astype(np.float32),
            "gated": np.zeros(self.ffn, np.float32),
            **{matrix.result: np.zeros(matrix.n, np.float32) for matrix in self._following},
            **attended._asdict(),
        }
        for stage in self.stages:
            if stage.gamma:
                given[stage.gamma] = rng.normal(1.0, 0.3, self.hidden).astype(np.float32)
            for matrix in stage.matrices:
                given |= {name: matrix.format.random_blocks(rng, matrix.n, stage.k) for name in matrix.weights}
        return {**given, "arrivals": np.zeros(2, np.uint32), "eps": np.float32(1e-5)}

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[PersistentLayer]:
        mixed = "Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K"
        yield cls(
            64, 96, 160, "Q8_0", "Q8_0", "Q8_0", gate_digits=1, attended_digits=2, blocks=2, rows_per_warp=2, pipeline_stages=3
        )
        yield cls(256, 512, 4864, *mixed, queries=67, keys=37, blocks=3)


def _runs(plan: Sequence[StreamPart]) -> list[list[StreamPart]]:
    """The parts, those together that follow one another and with which a warp does the same."""
    runs: list[list[StreamPart]] = []
    for part in plan:
        if runs and runs[-1][0].alike(part):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs
