"""The fast GEMV on int8 planes: fragments of super-blocks on neighbouring lanes, activations in shared memory, several rows a
warp, weights loaded ahead. It is a composition: of tokens, segments (the matrices), a source (of the activations), a stream of
weights, and a chain of epilogues. COMPOSITIONS lists those that have registered names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, Work
from ptxgen.dsl.launch_config import DEPENDENT_SM, LaunchConfig
from ptxgen.dsl.parts import PARTS, composed
from ptxgen.errors import ArgumentError
from ptxgen.formats import REPACKED, Format, find
from ptxgen.kernels.accuracy import with_outlier
from ptxgen.kernels.gemv import emission, epilogue
from ptxgen.kernels.gemv.blocks import Blocks
from ptxgen.kernels.gemv.epilogue import Arrays, Epilogue, Float64, Store, StoredRows
from ptxgen.kernels.gemv.fragments import Fragments
from ptxgen.kernels.gemv.grouped_rows import GroupedRows
from ptxgen.kernels.gemv.leave_norm import LeaveNorm
from ptxgen.kernels.gemv.matrices import Fused, FusedWithAnother, GateAndUp, MatrixOperand, OneMatrix
from ptxgen.kernels.gemv.plane_gemv_type import PACKED_WITH_REPACKED, Int8GemvType, relative_bound, runs
from ptxgen.kernels.gemv.planes import Planes
from ptxgen.kernels.gemv.residual import AddResidual
from ptxgen.kernels.gemv.samples import NARROW, of_one_matrix
from ptxgen.kernels.gemv.send_planes import SendPlanes
from ptxgen.kernels.gemv.source import PlaneSource
from ptxgen.kernels.gemv.suited import PIPELINE_ROOM, late_from, most_registers
from ptxgen.kernels.gemv.swiglu import GeGlu, SwiGlu
from ptxgen.kernels.gemv.tokens import Batch, OneToken
from ptxgen.kernels.quantize.int8_planes import quantize
from ptxgen.kernels.registry import register
from ptxgen.target import WARP_SIZE
from ptxgen.types import F32


@dataclass(frozen=True)
class HwDp4aGemv(Int8GemvType):
    """y = W x on int8 planes of activations, the fast path: dp4a on fragments that share a super-block.

    y: f32[n]; w: u8[n, row_bytes]; digits: s8[1, digits, k]; scales: f32[1, k / 32]; sums: s32[1, k / 32], as q8_quantize
    (digits=1), q16_quantize (2) or q24_quantize (3) writes them; further arguments as the parts say. A half-warp takes four
    super-blocks of Q4_K side by side, a lane the 64 weights of a chunk: so each pair of 6-bit scales is unpacked once, where a
    half-warp for one super-block would unpack it in four lanes. The rows of a warp share every read of the activations, the
    warps of a block their staging.

    tokens: one, or a batch (tokens.py). segments: the matrices, in `format`, and the last in the format `last`, if that is
    another (matrices.py). normed, row_parts: the source (source.py). epilogue: what becomes of the sums (epilogue.py).

    num_warps, rows_per_warp: see Blocks; a multiprocessor's registers hold resident_threads threads, of Q6_K half as many. The
    stream of weights: the loads of the first `ahead` steps are issued before the activations are touched; with `pdl` before
    the wait for the kernel that writes them (programmatic dependent launch, sm_90 and later), which takes more registers:
    between other kernels it is slower. With `row_groups` > 1 a warp computes so many times as many rows, group after group,
    while the activations stay in shared memory (row_groups.py), which must hold a whole row of them. With `stages` > 0 a warp
    has a pipeline of so many stages in shared memory (weight_pipeline.py; sm_90 and later; `ahead` has no effect). With
    `holds_next` the next launch may start when the blocks have their sums, and not at once."""

    # One warp, or a group of its lanes, has a row to itself.
    bit_free = ("num_warps", "rows_per_warp", "ahead", "resident_threads", "pdl", "row_groups", "stages", "holds_next")
    # A matrix may have fewer rows, and its activations may not fit; the last is of its neighbours, too.
    of_shape = ("row_groups", "stages", "holds_next")
    batched_alike = True
    last: Format | None = field(default=None, kw_only=True, metadata=HIDDEN)
    num_warps: int = field(default=8, kw_only=True)
    rows_per_warp: int = field(default=2, kw_only=True)
    ahead: int = field(default=2, kw_only=True)
    resident_threads: int = field(default=512, kw_only=True)
    pdl: bool = field(default=False, kw_only=True)
    normed: bool = field(default=False, kw_only=True)
    row_parts: int = field(default=1, kw_only=True)
    row_groups: int = field(default=1, kw_only=True)
    stages: int = field(default=0, kw_only=True)
    holds_next: bool = field(default=False, kw_only=True)
    tokens: OneToken = field(default=OneToken(), kw_only=True, metadata=PARTS)
    segments: OneMatrix = field(default=OneMatrix(), kw_only=True, metadata=PARTS)
    epilogue: tuple[Epilogue, ...] = field(default=(), kw_only=True, metadata=PARTS)

    def __post_init__(self) -> None:
        if self.last is not None:
            object.__setattr__(self, "last", find(self.last))
        elif "last" in self.segments.formats:
            raise ArgumentError("HwDp4aGemv for matrices of two formats needs `last`, the format of the last one")
        super().__post_init__()
        self.tokens.check(self.name)
        self._of_one_matrix().check_numbers()
        self.segments.check(self.name, self.last)
        if self.holds_next and not self.stages:
            raise ArgumentError(f"{self.name}: holds_next must be False without a pipeline")
        for blocks in self.blocks:
            blocks.check()
        if self.epilogue and (self.batch or len(self.results) > 1):
            raise ArgumentError(f"{self.name}: epilogues are for one token and one result, not for a batch or fused matrices")
        if isinstance(self.segments, GateAndUp) != any(isinstance(one, SwiGlu) for one in self.epilogue[:1]):
            raise ArgumentError(f"{self.name}: gate and up need SwiGLU or its like first of all, and other matrices have none")
        if any(isinstance(one, Planes) for one in self.epilogue[:-1]):
            raise ArgumentError(f"{self.name}: the epilogue that makes int8 planes must be the last")
        for one in self.epilogue:
            one.check(self.blocks[0])

    @property
    def name(self) -> str:
        formats = "_".join(getattr(self, name).id for name in self.segments.formats)
        suffixes = "".join(one.suffix for one in self.epilogue if one.suffix not in self.segments.implied)
        return f"{self.tokens.prefix}{self.segments.prefix}hw_dp4a_{formats}_gemv{suffixes}"

    @property
    def is_plain(self) -> bool:
        """Whether it multiplies one matrix by one token, and stores the sums."""
        return not self.batch and not self.epilogue and type(self.segments) is OneMatrix

    # Parts

    @property
    def batch(self) -> tuple[int, ...]:
        return self.tokens.batch

    @property
    def source(self) -> PlaneSource:
        """Where the activations come from."""
        return PlaneSource(self.k, self.digits, self.batch, self.normed, self.row_parts)

    @property
    def matrices(self) -> tuple[MatrixOperand, ...]:
        """All matrices of the launch."""
        return self.segments.matrices(self.n, self.format, self.last)

    @property
    def results(self) -> tuple[MatrixOperand, ...]:
        """The matrices that have a result of their own."""
        return tuple(matrix for matrix in self.matrices if matrix.own)

    @cached_property
    def blocks(self) -> tuple[Blocks, ...]:
        """The blocks of threads of the launch, by the format of the matrices of which they have rows."""
        return self.segments.blocks(self._of_one_matrix(), self.last)

    def _of_one_matrix(self) -> Blocks:
        """Those of a launch for the first matrix alone."""
        weights, onto = self.segments.weights, any(one.onto for one in self.epilogue)
        return Blocks(
            self.name,
            self.format,
            self.source,
            (self.n,),
            num_warps=self.num_warps,
            rows_per_warp=self.rows_per_warp,
            ahead=self.ahead,
            resident_threads=self.resident_threads,
            pdl=self.pdl,
            row_groups=self.row_groups,
            stages=self.stages,
            weights=weights,
            kept_bytes=sum(one.kept_bytes for one in self.epilogue) * len(weights),
            paced=any(one.paced for one in self.epilogue),
            late_from=late_from() if onto else None,
        )

    @property
    def fragments(self) -> Fragments:
        return Fragments.by_lane_groups(self.format, self.k)

    @property
    def sends(self) -> SendPlanes | None:
        """The epilogue that sends to other ranks."""
        return next((one for one in self.epilogue if isinstance(one, SendPlanes)), None)

    @property
    def alone(self) -> HwDp4aGemv:
        """The kernel that keeps the int8 planes that this one sends."""
        kept = (one.kept if isinstance(one, SendPlanes) else one for one in self.epilogue)
        return replace(self, epilogue=tuple(kept))

    # The launch

    @property
    def least_sm(self) -> int:
        return DEPENDENT_SM if self.pdl or self.stages else 75

    @property
    def waits_inside(self) -> bool:  # type: ignore[override]
        return self.stages > 0

    @property
    def frees_next_inside(self) -> bool:  # type: ignore[override]
        return self.holds_next

    @property
    def scratch(self) -> tuple[str, ...]:
        return tuple(name for one in self.epilogue for name in one.scratch(self.blocks[0]))

    def launch(self) -> LaunchConfig:
        first, *_ = blocks = self.blocks
        dynamic_shared = max(one.dynamic_shared for one in blocks)
        launch = LaunchConfig(
            sum(one.count for one in blocks),
            first.threads,
            max(1, first.threads_at_once // first.threads),
            dependent=self.pdl,
            dynamic_shared=dynamic_shared,
            shared_room=PIPELINE_ROOM if self.stages else 0,
            ranks=1 if self.sends is None else self.sends.ranks,
        )
        most = most_registers(first) if any(one.onto for one in self.epilogue) else None
        return launch if most is None else replace(launch, most_registers=most)

    def signature(self) -> Signature:
        _first, *further = self.matrices
        arguments = self.source.signature(super().signature())
        for one in self.epilogue:
            arguments = one.signature(self.blocks[0], arguments)
        for matrix in further:
            arguments = {**arguments, **matrix.signature(self.k)}
        return arguments if self.sends is None else self.sends.of_all_ranks(self.blocks[0], arguments)

    def emit(self, k: KernelBuilder) -> None:
        first, *others = self.blocks
        if not others:
            emission.emit(k, first, self._store(k, first), holds_next=self.holds_next)
            return
        (last,) = others
        with k.when(k.ctaid.x < last.first):
            emission.emit(k, first, self._store(k, first), holds_next=self.holds_next)
        with k.otherwise():
            emission.emit(k, last, self._store(k, last), holds_next=self.holds_next)

    def _store(self, k: KernelBuilder, blocks: Blocks) -> Store:
        *chain, last = self.epilogue or (None,)
        if isinstance(last, Planes):
            return GroupedRows(k, blocks, tuple(one for one in chain if one), last)
        return StoredRows(self.epilogue, bool(self.batch))

    # Reference

    @property
    def chain(self) -> int:
        return _chain(self.format, self.k)

    @property
    def relative_bound(self) -> float:
        return self._bound_of(self.format)

    def _bound_of(self, format: Format) -> float:
        return relative_bound(_chain(format, self.k), self.digits) + self.source.relative_bound

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        if self.sends is not None:
            return self.sends.reference_of_ranks(self.alone, self.blocks[0], arguments)
        values = self._products(arguments)
        if len(self.results) > 1:
            return self._named(values)
        return epilogue.reference(self.epilogue, self.blocks[0], arguments, values)

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        """Of each product as in Int8GemvType, with `normed` also what the root and its product round; then what the epilogues
        make of that."""
        if self.sends is not None:
            return self.sends.tolerance_of_ranks(self.alone, self.blocks[0], arguments)
        bounds = self._bounds(arguments)
        if len(self.results) > 1:
            return self._named(bounds)
        values = self._products(arguments) if self.epilogue else bounds
        return epilogue.tolerance(self.epilogue, self.blocks[0], arguments, values, bounds)

    def _named(self, of_each: list[Float64]) -> Arrays:
        return {matrix.argument("y"): one for matrix, one in zip(self.results, of_each, strict=True)}

    def _products(self, arguments: Mapping[str, Any]) -> list[Float64]:
        """Of each matrix."""
        x = self.source.exact(arguments)
        return [x @ matrix.format.dequantize(arguments[matrix.argument("w")]).astype("f8").T for matrix in self.matrices]

    def _bounds(self, arguments: Mapping[str, Any]) -> list[Float64]:
        """How far each product may be off."""
        x = np.abs(self.source.exact(arguments))
        found = []
        for matrix in self.matrices:
            weights, format = arguments[matrix.argument("w")], matrix.format
            sizes = np.abs(format.dequantize(weights).astype("f8")) + 2 * format.largest_minima(weights)
            found.append(self._bound_of(format) * (x @ sizes.T) + np.finfo(np.float32).tiny)
        return found

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        blocks = self.blocks[0]
        if self.sends is not None:
            whole = replace(self.alone, row_parts=1)
            return self.sends.inputs_of_ranks(whole, self.source, blocks, self.signature(), rng)
        inputs: dict[str, Any] = {}
        for matrix in self.results:
            own = self._inputs_of(rng, matrix)
            inputs |= {matrix.argument(name): own.pop(name) for name in ("y", "w")}
            inputs = own | inputs  # the activations of the first matrix are those of all
        for one in self.epilogue:
            inputs |= one.inputs(blocks, rng)
        further = (matrix for matrix in self.matrices if not matrix.own)
        return inputs | {matrix.argument("w"): matrix.format.random_blocks(rng, matrix.n, self.k) for matrix in further}

    def _inputs_of(self, rng: np.random.Generator, matrix: MatrixOperand) -> dict[str, Any]:
        """Of a launch for one matrix, as if that were the first."""
        x = with_outlier(rng, *self.batch, self.k)
        y = np.full((*self.batch, matrix.n), np.nan, np.float32)
        inputs = {"y": y, "w": matrix.format.random_blocks(rng, matrix.n, self.k)}
        return self.source.inputs(rng, inputs | quantize(x.reshape(-1, self.k), self.digits)._asdict())

    def work(self) -> Work:
        """The sum of that of the products and the epilogues; activations are read once."""
        rows, blocks = self.activation_rows, self.blocks[0]
        flops = sum(2 * rows * self.k * matrix.n for matrix in self.matrices)
        weights = sum(matrix.n * matrix.format.row_bytes(self.k) for matrix in self.matrices)
        results = sum(F32.bytes * rows * matrix.n for matrix in self.results)
        others = [one.work(blocks) for one in self.epilogue]
        read = self.source.bytes + sum(one.bytes for one in others)
        return Work(flops + sum(one.flops for one in others), weights + results + read)

    # Sample shapes

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[HwDp4aGemv]:
        parts = (*fixed.get("epilogue", ())[-1:], fixed.get("segments", OneMatrix), fixed.get("tokens", OneToken))
        own = next((part for part in parts if hasattr(part, "samples")), None)
        if own is None:
            yield from super().cases(format=fixed["format"])
            for shape in of_one_matrix(find(fixed["format"])):
                yield cls(**shape, format=fixed["format"])
            return
        for shape in own.samples(fixed):
            yield composed(cls, fixed, shape)

    @classmethod
    def _narrow(cls) -> dict[str, Any]:
        return dict(NARROW)


def _chain(format: Format, k: int) -> int:
    """The most roundings that any product with a matrix of this format goes through on its way into the sum."""
    return Fragments.by_lane_groups(format, k).steps * runs(format) + (WARP_SIZE.bit_length() - 1)


FUSED: Final = (find("Q4_K"), find("Q5_K"), find("Q8_0"), find("Q6_K"), *REPACKED.values())
"""The formats that have fused forms in the catalogue: those of most models. Of others a kernel is made by its class."""

GEGLU: Final = (find("Q8_0"),)
"""The formats that have GeGLU in the catalogue, to show it. Of others likewise."""

SENT: Final = (find("Q4_K"), find("Q5_K"), REPACKED["Q8_0_ALIGNED"])
"""The formats whose planes are sent in the catalogue: those of gate and up in most models. Of others likewise."""

PLAIN: Final[Mapping[str, Any]] = {"tokens": OneToken, "segments": OneMatrix, "epilogue": ()}
"""What the name of the kernel for one matrix and one token fixes beside the format."""

Composition = tuple[tuple[Format, ...], type[OneToken], type[OneMatrix], tuple[type[Epilogue], ...]]

COMPOSITIONS: Final[tuple[Composition, ...]] = (
    (PACKED_WITH_REPACKED, OneToken, OneMatrix, ()),
    (PACKED_WITH_REPACKED, Batch, OneMatrix, ()),
    (PACKED_WITH_REPACKED, OneToken, OneMatrix, (AddResidual,)),
    (FUSED, OneToken, OneMatrix, (AddResidual, LeaveNorm)),
    (FUSED, OneToken, GateAndUp, (SwiGlu, Planes)),
    (GEGLU, OneToken, GateAndUp, (GeGlu, Planes)),
    (SENT, OneToken, GateAndUp, (SwiGlu, SendPlanes)),
    (FUSED, OneToken, Fused, ()),
)
"""The formats and parts of kernels that have a registered name."""

for _formats, _tokens, _segments, _epilogue in COMPOSITIONS:
    register(format=_formats, tokens=[_tokens], segments=[_segments], epilogue=[_epilogue])(HwDp4aGemv)
register(
    format=(find("Q4_K"), find("Q5_K")),
    last=(find("Q6_K"), REPACKED["Q6_K_ALIGNED"]),
    tokens=[OneToken],
    segments=[FusedWithAnother],
    epilogue=[()],
)(HwDp4aGemv)
