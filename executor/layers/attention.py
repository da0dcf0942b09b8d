"""One token's attention over the cache: which kernels run, on which buffers. Where the token stands is in device buffers, so
that the same launches serve every position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from executor.choice.attention import TokenAttentionChoice
from executor.layers.activations import Activations, AttentionRows
from executor.layers.graph.binding import Binding
from executor.layers.graph.values import Form, StepValue
from executor.layers.indexed import ValidatedLayerWeights
from executor.layers.shape import LayerShape
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import LayerCache
from executor.memory.workspace import Workspace
from ptxgen.dsl.kernel_type import HalfForm, KernelType
from ptxgen.kernels.activation.bias import BiasAdd
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.attention.f16_split import F16SplitOutput
from ptxgen.kernels.attention.int8_planes import Int8PlanesOutput
from ptxgen.kernels.attention.kv_cache_scatter import KvCacheScatter
from ptxgen.kernels.attention.output import Output
from ptxgen.kernels.attention.rope_scatter import LARGEST_HEAD, RopeScatter, can_norm
from ptxgen.kernels.attention.rope_source import RopeFused
from ptxgen.kernels.attention.scores import PLAIN_SCORES, Scoring
from ptxgen.kernels.attention.temperature import QueryTemperature
from ptxgen.kernels.attention.token_split import LastBlock
from ptxgen.kernels.norm.per_head_layernorm import PerHeadLayerNorm
from ptxgen.kernels.norm.per_head_rmsnorm import PerHeadRmsNorm
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.kernels.rope.rope import Rope


@dataclass(frozen=True)
class PositionSplit:
    """How a long sequence's positions are dealt out to the blocks of one launch, and where these hand over what they found."""

    choice: TokenAttentionChoice
    workspace: Workspace

    @property
    def part(self) -> LastBlock:
        """The split of the kernel."""
        return LastBlock(self.choice.splits, self.choice.least, self.choice.short)

    def buffers(self, kernel: ContiguousAttention) -> dict[str, GpuBuffer]:
        """The arguments for that; layers share these."""
        return self.workspace.arrays(kernel, "attention of a token", kernel.scratch)

    def style(self, s: LayerShape, w: ValidatedLayerWeights) -> RopeFused | None:
        """What attention does to heads of a layer before it attends to them; None where it does not, because it is not asked
        to, or there is no kernel that does what these need."""
        neox, normed = s.rope_style == "neox", None not in (w.attn_q_norm, w.attn_k_norm)
        whole = s.rope_dim == s.head_dim == s.value_width <= LARGEST_HEAD
        if s.form.rotates_apart or not (self.choice.rope_fused and biases_at_once(w) and whole):
            return None
        if (w.attn_q_norm, w.attn_k_norm) != (None, None):
            suits = normed and can_norm(neox=neox, head_dim=s.head_dim, rotary_dim=s.rope_dim, value_width=s.value_width)
            return RopeFused(neox, normed=True) if suits else None
        return RopeFused(neox, bias=bool(biases(w)))


@dataclass(frozen=True)
class TokenAttention:
    """That of a token at `position` over the cache of one sequence. position, length: u32[1], length is position + 1;
    rope_table: f32[max_len, rope_dim / 2, 2]; split: of long sequences."""

    cache: LayerCache
    position: GpuBuffer
    length: GpuBuffer
    rope_table: GpuBuffer
    split: PositionSplit

    def __call__(
        self, b: Binding, s: LayerShape, w: ValidatedLayerWeights, a: Activations, out: StepValue, form: Form | None, /
    ) -> None:
        """See AttentionLayout; of the length, the token itself is the last. Where one launch does it all, a.q, a.k and a.v stay
        as they are: nothing reads them after it."""
        if b.fused and (style := self.split.style(s, w)) is not None:
            self._attend_at_once(b, s, w, a, style, out, form)
            return
        self._rotate_and_append(b, s, w, a)
        attend(b, self.cache, q=a.q, out=out, length=self.length, form=form, split=self.split, scores=s.form.scores)

    def _attend_at_once(
        self,
        b: Binding,
        s: LayerShape,
        w: ValidatedLayerWeights,
        a: Activations,
        style: RopeFused,
        out: StepValue,
        form: Form | None,
    ) -> None:
        cache, split = self.cache, self.split
        form = planes_of_heads(form, s.value_width)
        sizes: dict[str, Any] = {"heads": s.heads, "kv_heads": s.kv_heads, "head_dim": s.head_dim, **positions_of(cache)}
        parts: dict[str, Any] = {"split": split.part, "source": style, "scores": s.form.scores}
        kernel = ContiguousAttention(True, **sizes, output=output_of(form), **parts)
        norms = {"q_gamma": w.attn_q_norm, "k_gamma": w.attn_k_norm, "eps": s.rms_eps} if style.normed else {}
        arguments: dict[str, Any] = {
            "out": a.attended, "q": a.q, "k": a.k, "v": a.v, "table": self.rope_table, "position": self.position,
            "k_cache": cache.keys, "v_cache": cache.values, **norms, **biases(w), **split.buffers(kernel),
        }  # fmt: skip
        enqueue_attention(b, kernel, out, form, arguments)

    def _rotate_and_append(self, b: Binding, s: LayerShape, w: ValidatedLayerWeights, a: Activations) -> None:
        cache, neox = self.cache, s.rope_style == "neox"
        if s.form.rotates_apart:
            rotate_rows(b, s, w, a, positions=self.position, table=self.rope_table)
            append(b, cache, k=a.k, v=a.v, position=self.position)
            return
        places = {"table": self.rope_table, "position": self.position}
        if b.fused and biases_at_once(w):
            added, norms = biases(w), {"q_gamma": w.attn_q_norm, "k_gamma": w.attn_k_norm}
            sizes: dict[str, Any] = {"heads": s.heads, "kv_heads": s.kv_heads, "head_dim": s.head_dim, **positions_of(cache)}
            sizes["value_dim"] = s.value_dim
            given = {"q": a.q, "k": a.k, "v": a.v, "k_cache": cache.keys, "v_cache": cache.values, **places}
            normed = None not in norms.values()
            if normed and can_norm(neox=neox, head_dim=s.head_dim, rotary_dim=s.rope_dim, value_width=s.value_width):
                at_once = RopeScatter(neox, False, **sizes, normed=True)
                b("rope_scatter", at_once, **given, **norms, eps=s.rms_eps)
                return
            normalise_heads(b, s, w, a)
            kernel = RopeScatter(neox, bool(added), **sizes, rotary_dim=s.rope_dim)
            b("rope_scatter", kernel, **given, **added)
            return
        for name, bias in biases(w).items():
            role = name[0]
            x: GpuBuffer = getattr(a, role)
            b(f"attn_{role}_bias", AddInPlace(n=bias.shape[0]), x=x.view(0, bias.shape), delta=bias)
        normalise_heads(b, s, w, a)
        for role, x in (("q", a.q), ("k", a.k)):
            b(f"rope_{role}", Rope(neox, True, x.shape[0], s.head_dim, cache.max_len, s.rope_dim), x=x, **places)
        append(b, cache, k=a.k, v=a.v, position=self.position)


def planes_of_heads(form: Form | None, value_width: int) -> int | None:
    """The int8 planes that attention writes for a reader of this form: its blocks are of one head each."""
    return form if isinstance(form, int) and value_width % BLOCK == 0 else None


def output_of(form: Form | None) -> Output:
    """What attention writes for an output projection that reads this form."""
    if isinstance(form, HalfForm):
        return F16SplitOutput(form.parts, form.lane_run)
    return Output() if form is None else Int8PlanesOutput(form)


def biases(w: ValidatedLayerWeights) -> dict[str, GpuBuffer]:
    """Those that the layer has, as the kernels that add them name them."""
    named = {"q_bias": w.attn_q_bias, "k_bias": w.attn_k_bias, "v_bias": w.attn_v_bias}
    return {name: bias for name, bias in named.items() if bias is not None}


def biases_at_once(w: ValidatedLayerWeights) -> bool:
    """Whether the kernel that rotates and appends can add the biases: all or none, and no norm of the heads between."""
    return len(biases(w)) in (0, 3) and ((w.attn_q_norm, w.attn_k_norm) == (None, None) or w.attn_q_bias is None)


def add_biases(b: Binding, w: ValidatedLayerWeights, a: AttentionRows) -> None:
    """To the queries, keys and values of all rows, where the layer has them."""
    for name, bias in biases(w).items():
        role = name[0]
        x: GpuBuffer = getattr(a, role)
        kernel = BiasAdd(n=bias.shape[0], m=a.rows)
        b(f"attn_{role}_bias", kernel, x=x.view(0, (a.rows, bias.shape[0])), bias=bias)


def normalise_heads(b: Binding, s: LayerShape, w: ValidatedLayerWeights, a: AttentionRows) -> None:
    """The norm of each head of the queries and the keys of all rows, where the architecture has it."""
    for role, norm, x in (("q", w.attn_q_norm, a.q), ("k", w.attn_k_norm, a.k)):
        if norm is not None:
            heads = x.view(0, (prod(x.shape[:-1]), s.head_dim))
            kernel: KernelType = PerHeadRmsNorm(heads=heads.shape[0], head_dim=s.head_dim)
            if s.form.qk_norm == "rows":
                kernel = PerHeadLayerNorm(heads=norm.shape[0], head_dim=s.head_dim, m=a.rows)
            b(f"attn_{role}_norm", kernel, x=heads, gamma=norm, eps=s.rms_eps)


def rotate_rows(
    b: Binding, s: LayerShape, w: ValidatedLayerWeights, a: AttentionRows, *, positions: GpuBuffer, table: GpuBuffer
) -> None:
    """The queries, keys and values of rows, ready for attention, and for their cache if they have one.

    positions: u32[rows]; table: f32[max_len, rope_dim / 2, 2]. A row at a position of max_len or more is not rotated."""
    late, temperature = s.form.qk_norm == "rotated", s.form.temperature
    add_biases(b, w, a)
    if not late:
        normalise_heads(b, s, w, a)
    for role, x in (("q", a.q), ("k", a.k)):
        heads = x.shape[-2]
        kernel = Rope(s.rope_style == "neox", True, heads, s.head_dim, table.shape[0], s.rope_dim, m=a.rows)
        b(f"rope_{role}", kernel, x=x.view(0, (a.rows, heads, s.head_dim)), table=table, positions=positions)
    if late:
        normalise_heads(b, s, w, a)
    if temperature is not None:
        grow = QueryTemperature(n=s.q_dim, m=a.rows, **asdict(temperature))
        b("attn_q_temperature", grow, x=a.q.view(0, (a.rows, s.q_dim)), positions=positions)


def positions_of(cache: LayerCache) -> dict[str, Any]:
    """What kernels must know of them, by the names of their fields."""
    return {"max_len": cache.max_len, "ring": cache.ring}


def append(b: Binding, cache: LayerCache, *, k: GpuBuffer, v: GpuBuffer, position: GpuBuffer) -> None:
    """k and v go into the cache at `position`. k: f32[kv_heads, head_dim], rotated already; v: f32[kv_heads, value_dim];
    position: u32[1]."""
    kv_heads, head_dim = k.shape
    kernel = KvCacheScatter(True, kv_heads, head_dim, **positions_of(cache), value_dim=cache.value_dim)
    b("kv_scatter", kernel, k_cache=cache.keys, v_cache=cache.values, k=k, v=v, position=position)


def attend(
    b: Binding,
    cache: LayerCache,
    *,
    q: GpuBuffer,
    out: StepValue,
    length: GpuBuffer,
    split: PositionSplit,
    form: Form | None = None,
    scores: Scoring = PLAIN_SCORES,
) -> None:
    """`out` is what q attends to among the first `length` positions of the cache; `form` is what it is read as; `split` as in
    TokenAttention; scores: which of the positions it sees, and what becomes of its scores.

    q: f32[heads, head_dim], rotated already; out: f32[heads, value_dim]; length: u32[1].
    """
    heads, head_dim = q.shape
    kv_heads, _, _ = cache.keys.shape
    shape: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, **positions_of(cache)}
    shape["value_dim"] = cache.value_dim
    arguments = {"out": out.buffer, "q": q, "k_cache": cache.keys, "v_cache": cache.values, "length": length}
    form = planes_of_heads(form, cache.values.shape[-1]) if b.fused else None
    kernel = ContiguousAttention(True, **shape, output=output_of(form), scores=scores)
    if cache.max_len > split.choice.short:  # else no sequence is long, and of others incremental_attention has the same bits
        kernel = replace(kernel, split=split.part)
        arguments |= split.buffers(kernel)
    enqueue_attention(b, kernel, out, form, arguments)


def enqueue_attention(
    b: Binding, kernel: ContiguousAttention, out: StepValue, form: int | None, arguments: Mapping[str, Any]
) -> None:
    """Launch a kernel of a token's attention, which writes this form of its result, if there is one, beside it."""
    if form is None:
        b("attention", kernel, **arguments)
    else:
        b.write("attention", kernel, out, form, **arguments)
