"""Attention of one new token over a contiguous cache in one launch, composed of a query source, a split and an output form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import HIDDEN, KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.parts import PARTS
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.attention_type import AttentionType, positions
from ptxgen.kernels.attention.int8_planes import Int8PlanesOutput
from ptxgen.kernels.attention.output import Output, OutShape
from ptxgen.kernels.attention.query_source import PLAIN, QuerySource
from ptxgen.kernels.attention.ring import require_ring
from ptxgen.kernels.attention.rope_source import ROPE_FUSED
from ptxgen.kernels.attention.scores import PLAIN_SCORES, Scoring
from ptxgen.kernels.attention.token_split import LastBlock, OneBlock, Warps, softmax
from ptxgen.kernels.registry import register
from ptxgen.types import F32

F32_OUT: Final = Output()
ONE_BLOCK: Final = OneBlock()

SAMPLES: Final[Mapping[tuple[bool, type[OneBlock], type[Output]], tuple[tuple[Output, OneBlock, tuple[int, ...]], ...]]] = {
    (False, OneBlock, Output): tuple(
        (F32_OUT, ONE_BLOCK, sizes)
        for sizes in ((9, 3, 64, 100), (8, 2, 128, 33), (4, 1, 256, 40), (2, 2, 96, 300), (3, 1, 32, 1))
    ),
    (False, Warps, Output): (
        (F32_OUT, Warps(4), (9, 3, 64, 200)),
        (F32_OUT, Warps(1), (4, 1, 256, 40)),
        (F32_OUT, Warps(2), (4, 2, 128, 67)),
        (F32_OUT, Warps(8), (2, 2, 256, 331)),
    ),
    (False, OneBlock, Int8PlanesOutput): (
        (Int8PlanesOutput(2), ONE_BLOCK, (9, 3, 64, 100)),
        (Int8PlanesOutput(1), ONE_BLOCK, (8, 2, 128, 33)),
        (Int8PlanesOutput(3), ONE_BLOCK, (2, 1, 256, 40)),
        (Int8PlanesOutput(3), ONE_BLOCK, (2, 2, 96, 300)),
        (Int8PlanesOutput(2), ONE_BLOCK, (3, 1, 32, 1)),
    ),
    (False, LastBlock, Output): (
        (F32_OUT, LastBlock(3, 32, 32), (6, 1, 64, 200)),
        (F32_OUT, LastBlock(2, 32, 32), (1, 1, 32, 1)),
    ),
    (False, LastBlock, Int8PlanesOutput): (
        (Int8PlanesOutput(2), LastBlock(4, 32, 64), (2, 1, 128, 130)),
        (Int8PlanesOutput(1), LastBlock(2, 32, 32), (1, 1, 32, 1)),
    ),
    (True, LastBlock, Output): (
        (F32_OUT, LastBlock(3, 32, 32), (6, 1, 64, 200)),
        (F32_OUT, LastBlock(2, 32, 32), (1, 1, 64, 2)),
        (F32_OUT, LastBlock(2, 32, 64), (2, 2, 128, 40)),
    ),
    (True, LastBlock, Int8PlanesOutput): (
        (Int8PlanesOutput(2), LastBlock(4, 32, 64), (2, 1, 128, 130)),
        (Int8PlanesOutput(3), LastBlock(2, 32, 32), (1, 1, 64, 2)),
        (Int8PlanesOutput(3), LastBlock(2, 32, 64), (5, 1, 64, 40)),
    ),
}
"""Samples of each composition, by whether it is RoPE-fused, how it is split, what it writes; heads to max_len last."""

SCORED: Final[
    Mapping[
        tuple[bool, type[OneBlock], type[Output]], tuple[tuple[Output, OneBlock, tuple[int, ...], Scoring, int | None], ...]
    ]
] = {
    (False, OneBlock, Output): (
        (F32_OUT, ONE_BLOCK, (6, 2, 40, 70), Scoring(window=37, softcap=5.0, scale=0.3, alibi=8.0), None),
    ),
    (False, LastBlock, Output): (
        (F32_OUT, LastBlock(3, 32, 32), (5, 1, 80, 120), Scoring(90, 5.0, alibi=8.0), None),
        (F32_OUT, LastBlock(2, 32, 32), (2, 1, 32, 150), Scoring(window=70), 96),
    ),
    (True, LastBlock, Output): ((F32_OUT, LastBlock(2, 32, 64), (2, 1, 64, 150), Scoring(window=70), 96),),
}
"""Samples with other scores, and rings."""


@register(indirect=(False, True), output=(Output,), split=(OneBlock, Warps), source=(PLAIN,), scores=(Scoring,))
@register(indirect=(True,), output=(Int8PlanesOutput,), split=(OneBlock,), source=(PLAIN,), scores=(Scoring,))
@register(
    indirect=(True,), output=(Output, Int8PlanesOutput), split=(LastBlock,), source=(PLAIN, *ROPE_FUSED), scores=(Scoring,)
)
@dataclass(frozen=True)
class ContiguousAttention(AttentionType):
    """out[h] = softmax(q[h] K^T / sqrt(head_dim)) V over the first `length` positions of a cache.

    q: f32[heads, head_dim]; out: f32[heads, value_dim]; k_cache, v_cache: f32[kv_heads, max_len, head_dim or value_dim], K and
    V are those of key/value head h // group, group = heads / kv_heads; value_dim is head_dim unless it is given. length: u32
    scalar 1..max_len, or with `indirect` a buffer u32[1] that holds it; any other length writes nothing. Nothing past `length`
    is read. head_dim and value_dim are 32, a multiple of 8 from 40 to 256, or 512.

    split: a block a head (incremental_attention, multi_warp_attention), or several for long sequences (grouped_attention), see
    token_split.py. output: what is written beside `out` (`_digits`: the int8 planes of its row), see output.py. source: the
    arguments that stand for q, length and the last row of the caches (`rope_`, `bias_rope_`, `norm_rope_`), see rope_source.py.
    scores: a window, a factor other than 1 / sqrt(head_dim), a cap or ALiBi, see scores.py; nothing before the window is read.
    ring: the caches are f32[kv_heads, ring, head_dim], at least as long as the window; position p has row p % ring (ring.py).
    """

    output: Output = field(default=F32_OUT, kw_only=True, metadata=PARTS)
    split: OneBlock = field(default=ONE_BLOCK, kw_only=True, metadata=PARTS)
    source: QuerySource = field(default=PLAIN, kw_only=True, metadata=HIDDEN)
    scores: Scoring = field(default=PLAIN_SCORES, kw_only=True, metadata=PARTS)
    ring: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.output.one_token and (self.split.any_source or self.source == PLAIN)):
            raise ArgumentError(f"there is no {self.name} of {self.source}, {self.split} and {self.output}")
        self.output.require(self, self.out_shape)
        for part in (self.split, self.source, self.scores):
            part.require(self)
        if self.ring is not None and self.scores.window is None:
            raise ArgumentError(f"{self.name}: a ring keeps a window of positions, got ring={self.ring} and no window")
        require_ring(self, self.ring, self.scores.window)

    @property
    def name(self) -> str:
        indirect = "_indirect" if self.indirect else ""
        return f"{self.source.prefix}{self.split.stem}_attention{self.output.suffix}{indirect}"

    @property
    def kept(self) -> int | None:
        return self.ring

    @property
    def waits_inside(self) -> bool:  # type: ignore[override]
        return self.source.waits_inside

    @property
    def least_sm(self) -> int:
        return self.source.least_sm

    @property
    def most_code(self) -> int:  # type: ignore[override]
        return min(self.split.most_code, self.source.most_code)

    @property
    def scratch(self) -> tuple[str, ...]:
        return self.split.scratch

    @property
    def out_shape(self) -> OutShape:
        """Of `out`, as that of one token."""
        return OutShape(1, self.heads, self.value_width)

    def signature(self) -> Signature:
        written = {"out": write(F32, self.heads, self.value_width), **self.output.arrays(self.out_shape)}
        return self.source.signature(self, {**written, **super().signature(), **self.split.arrays(self)})

    def launch(self) -> LaunchConfig:
        return self.split.launch(self)

    def emit(self, k: KernelBuilder) -> None:
        self.split.emit(k, self, self.source, self.output)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        given = self.source.given(self, arguments)
        length = self.given_length(given)
        written = {name: arguments[name] for name in ("out", *self.output.arrays(self.out_shape))}
        if length:
            out = self._exact_out(given, length)
            written = {"out": out, **self.output.of(self.out_shape, out)}
        return {**written, **self.split.left(self, given, length), **self.source.kept(given)}

    def _exact_out(self, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
        scores, values = self.exact(given, length)
        out: NDArray[np.float64] = np.einsum("hl,hld->hd", softmax(scores), values)
        return out

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """See the split's `bound`; what that lets the output form be; what the source lets caches be."""
        given = self.source.given(self, arguments)
        length = self.given_length(given)
        bounds: dict[str, Any] = dict.fromkeys(("out", *self.output.arrays(self.out_shape)), 0.0)
        off = self.source.off(self, given, length) if length else 0.0
        if length:
            bound = self.split.bound(self, given, length, off)
            bounds = {"out": bound, **self.output.bounds(self.out_shape, self._exact_out(given, length), bound)}
        return {**bounds, **self.split.left_bounds(self, given, length, off), **self.source.kept_bounds(self, arguments)}

    def work(self, length: int | None = None) -> Work:
        rows = self.scores.seen(positions(self, self.max_len, length))
        more = self.output.work(self.out_shape), self.source.work(self)
        widths = self.head_dim + self.value_width
        flops = self.heads * (2 * rows * widths + 4 * rows)
        moved = F32.bytes * widths * (self.kv_heads * rows + self.heads)
        return Work(flops + sum(one.flops for one in more), moved + sum(one.bytes for one in more))

    @classmethod
    def cases(cls, *, source: QuerySource = PLAIN, scores: type[Scoring] = Scoring, **fixed: Any) -> Iterator[KernelType]:
        composed = source != PLAIN, fixed.pop("split", OneBlock), fixed.pop("output", Output)
        plain = ((*sample, PLAIN_SCORES, None) for sample in SAMPLES[composed])
        for output, split, sizes, of_scores, ring in (*plain, *SCORED.get(composed, ())):
            shape: dict[str, Any] = dict(zip(("heads", "kv_heads", "head_dim", "max_len"), sizes, strict=True))
            yield cls(**fixed, **shape, output=output, split=split, source=source, scores=of_scores, ring=ring)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """A sequence that is long, where there is room for one."""
        given = super().inputs(rng)
        while self._is_long(self.max_len) and not self._is_long(int(np.asarray(given["length"]).reshape(()))):
            given = super().inputs(rng)
        out = {"out": np.zeros((self.heads, self.value_width), np.float32), **self.output.unwritten(self.out_shape)}
        return self.source.inputs(self, {**out, **given, **self.split.unwritten(self)}, rng)

    def _is_long(self, length: int) -> bool:
        return self.split.is_long(self.scores.seen(length))
