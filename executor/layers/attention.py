"""One token's attention over the cache: which kernels run, on which buffers. Where the token stands is in device buffers, so
that the same launches serve every position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from executor.choice.attention import TokenAttentionChoice
from executor.layers.activations import Activations, AttentionRows
from executor.layers.calls import LaunchQueue
from executor.layers.indexed import ValidatedLayerWeights
from executor.layers.packed import Form
from executor.layers.shape import LayerShape
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import LayerCache
from executor.memory.workspace import Workspace
from ptxgen.kernels.activation.bias import BiasAdd
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.kernels.attention.attention_digits import IncrementalAttentionDigits
from ptxgen.kernels.attention.grouped_attention import GroupedAttention, GroupedAttentionDigits
from ptxgen.kernels.attention.incremental_attention import IncrementalAttention
from ptxgen.kernels.attention.kv_cache_scatter import KvCacheScatter
from ptxgen.kernels.attention.norm_rope_scatter import NormRopeScatter
from ptxgen.kernels.attention.rope_scatter import RopeScatter
from ptxgen.kernels.attention.rotating_attention import RotatingAttention, RotatingAttentionDigits
from ptxgen.kernels.norm.per_head_rmsnorm import PerHeadRmsNorm
from ptxgen.kernels.rope.rope import Rope


@dataclass(frozen=True)
class PositionSplit:
    """How a long sequence's positions are dealt out to the blocks of one launch, and where these hand over what they found."""

    choice: TokenAttentionChoice
    workspace: Workspace

    @property
    def shape(self) -> dict[str, int]:
        """What the kernel is made with, beside its cache."""
        return {"splits": self.choice.splits, "least": self.choice.least, "short": self.choice.short}

    def buffers(self, kernel: GroupedAttention) -> dict[str, GpuBuffer]:
        """The arguments for that; layers share these."""
        return self.workspace.arrays(kernel, "attention of a token", kernel.scratch)

    def style(self, s: LayerShape, w: ValidatedLayerWeights) -> HeadStyle | None:
        """What attention does to heads of a layer before it attends to them; None where it does not, because it is not asked
        to, or there is no kernel that does what these need."""
        neox, normed = s.rope_style == "neox", None not in (w.attn_q_norm, w.attn_k_norm)
        if not (self.choice.rotating and biases_at_once(w) and s.rope_dim == s.head_dim):
            return None
        if (w.attn_q_norm, w.attn_k_norm) != (None, None):
            suits = normed and NormRopeScatter.suits(neox=neox, head_dim=s.head_dim, rotary_dim=s.rope_dim)
            return HeadStyle(neox, bias=False, normed=True) if suits else None
        return HeadStyle(neox, bias=bool(biases(w)), normed=False)


class HeadStyle(NamedTuple):
    """As the fields of RotatingAttention."""

    neox: bool
    bias: bool
    normed: bool


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
        self, launch: LaunchQueue, s: LayerShape, w: ValidatedLayerWeights, a: Activations, /, *, form: Form | None = None
    ) -> None:
        """As Attention of transformer.py; of the length, the token itself is the last. Where one launch does it all, a.q, a.k
        and a.v stay as they are: nobody reads them after it."""
        if launch.fused and (style := self.split.style(s, w)) is not None:
            self._attend_at_once(launch, s, w, a, style, self.split, form)
            return
        self._rotate_and_append(launch, s, w, a)
        attend(launch, self.cache, q=a.q, out=a.attended, length=self.length, form=form, split=self.split)

    def _attend_at_once(
        self,
        launch: LaunchQueue,
        s: LayerShape,
        w: ValidatedLayerWeights,
        a: Activations,
        style: HeadStyle,
        split: PositionSplit,
        form: Form | None,
    ) -> None:
        cache = self.cache
        digits = {"digits": form} if isinstance(form, int) else {}
        sizes = {"heads": s.heads, "kv_heads": s.kv_heads, "head_dim": s.head_dim, "max_len": cache.max_len}
        shape: dict[str, Any] = {**sizes, **digits, **split.shape, **style._asdict()}
        kernel = (RotatingAttentionDigits if digits else RotatingAttention)(True, **shape)
        norms = {"q_gamma": w.attn_q_norm, "k_gamma": w.attn_k_norm, "eps": s.rms_eps} if style.normed else {}
        arguments: dict[str, Any] = {
            "out": a.attended, "q": a.q, "k": a.k, "v": a.v, "table": self.rope_table, "position": self.position,
            "k_cache": cache.keys, "v_cache": cache.values, **norms, **biases(w), **split.buffers(kernel),
        }  # fmt: skip
        enqueue_attention(launch, kernel, digits, arguments)

    def _rotate_and_append(self, launch: LaunchQueue, s: LayerShape, w: ValidatedLayerWeights, a: Activations) -> None:
        cache, neox = self.cache, s.rope_style == "neox"
        places = {"table": self.rope_table, "position": self.position}
        if launch.fused and biases_at_once(w):
            added, norms = biases(w), {"q_gamma": w.attn_q_norm, "k_gamma": w.attn_k_norm}
            sizes = {"heads": s.heads, "kv_heads": s.kv_heads, "head_dim": s.head_dim, "max_len": cache.max_len}
            given = {"q": a.q, "k": a.k, "v": a.v, "k_cache": cache.keys, "v_cache": cache.values, **places}
            normed = None not in norms.values()
            if normed and NormRopeScatter.suits(neox=neox, head_dim=s.head_dim, rotary_dim=s.rope_dim):
                at_once = NormRopeScatter(neox, False, **sizes)
                launch("rope_scatter", at_once, **given, **norms, eps=s.rms_eps)
                return
            normalise_heads(launch, s, w, a)
            kernel = RopeScatter(neox, bool(added), **sizes, rotary_dim=s.rope_dim)
            launch("rope_scatter", kernel, **given, **added)
            return
        for name, bias in biases(w).items():
            role = name[0]
            x: GpuBuffer = getattr(a, role)
            launch(f"attn_{role}_bias", AddInPlace(n=bias.shape[0]), x=x.view(0, bias.shape), delta=bias)
        normalise_heads(launch, s, w, a)
        for role, x in (("q", a.q), ("k", a.k)):
            launch(f"rope_{role}", Rope(neox, True, x.shape[0], s.head_dim, cache.max_len, s.rope_dim), x=x, **places)
        append(launch, cache, k=a.k, v=a.v, position=self.position)


def biases(w: ValidatedLayerWeights) -> dict[str, GpuBuffer]:
    """Those that the layer has, as the kernels that add them name them."""
    named = {"q_bias": w.attn_q_bias, "k_bias": w.attn_k_bias, "v_bias": w.attn_v_bias}
    return {name: bias for name, bias in named.items() if bias is not None}


def biases_at_once(w: ValidatedLayerWeights) -> bool:
    """Whether the kernel that rotates and appends can add the biases: all or none, and no norm of the heads between."""
    return len(biases(w)) in (0, 3) and ((w.attn_q_norm, w.attn_k_norm) == (None, None) or w.attn_q_bias is None)


def add_biases(launch: LaunchQueue, w: ValidatedLayerWeights, a: AttentionRows) -> None:
    """To the queries, keys and values of all rows, where the layer has them."""
    for name, bias in biases(w).items():
        role = name[0]
        x: GpuBuffer = getattr(a, role)
        kernel = BiasAdd(n=bias.shape[0], m=a.rows)
        launch(f"attn_{role}_bias", kernel, x=x.view(0, (a.rows, bias.shape[0])), bias=bias)


def normalise_heads(launch: LaunchQueue, s: LayerShape, w: ValidatedLayerWeights, a: AttentionRows) -> None:
    """The RMSNorm of each head of the queries and the keys of all rows, where the architecture has it."""
    for role, norm, x in (("q", w.attn_q_norm, a.q), ("k", w.attn_k_norm, a.k)):
        if norm is not None:
            heads = x.view(0, (prod(x.shape[:-1]), s.head_dim))
            kernel = PerHeadRmsNorm(heads=heads.shape[0], head_dim=s.head_dim)
            launch(f"attn_{role}_norm", kernel, x=heads, gamma=norm, eps=s.rms_eps)


def rotate_rows(
    launch: LaunchQueue, s: LayerShape, w: ValidatedLayerWeights, a: AttentionRows, *, positions: GpuBuffer, table: GpuBuffer
) -> None:
    """The queries, keys and values of rows that join no cache, ready for attention.

    positions: u32[rows]; table: f32[max_len, rope_dim / 2, 2]. A row at a position of max_len or more is not rotated."""
    add_biases(launch, w, a)
    normalise_heads(launch, s, w, a)
    for role, x in (("q", a.q), ("k", a.k)):
        heads = x.shape[-2]
        kernel = Rope(s.rope_style == "neox", True, heads, s.head_dim, table.shape[0], s.rope_dim, m=a.rows)
        launch(f"rope_{role}", kernel, x=x.view(0, (a.rows, heads, s.head_dim)), table=table, positions=positions)


def append(launch: LaunchQueue, cache: LayerCache, *, k: GpuBuffer, v: GpuBuffer, position: GpuBuffer) -> None:
    """k and v go into the cache at `position`. k, v: f32[kv_heads, head_dim], k rotated already; position: u32[1]."""
    kv_heads, head_dim = k.shape
    kernel = KvCacheScatter(indirect=True, kv_heads=kv_heads, head_dim=head_dim, max_len=cache.max_len)
    launch("kv_scatter", kernel, k_cache=cache.keys, v_cache=cache.values, k=k, v=v, position=position)


def attend(
    launch: LaunchQueue,
    cache: LayerCache,
    *,
    q: GpuBuffer,
    out: GpuBuffer,
    length: GpuBuffer,
    split: PositionSplit,
    form: Form | None = None,
) -> None:
    """`out` is what q attends to among the first `length` positions of the cache; `form` is what it is read as; `split` as in
    TokenAttention.

    q, out: f32[heads, head_dim], q rotated already; length: u32[1].
    """
    heads, head_dim = q.shape
    kv_heads, _, _ = cache.keys.shape
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "max_len": cache.max_len}
    arguments = {"out": out, "q": q, "k_cache": cache.keys, "v_cache": cache.values, "length": length}
    digits = {"digits": form} if launch.fused and isinstance(form, int) else {}
    kernel: IncrementalAttention
    if cache.max_len <= split.choice.short:  # no sequence is long, and of others incremental_attention has the same bits
        kernel = (IncrementalAttentionDigits if digits else IncrementalAttention)(True, **shape, **digits)
    else:
        grouped = (GroupedAttentionDigits if digits else GroupedAttention)(True, **shape, **digits, **split.shape)
        kernel, arguments = grouped, arguments | split.buffers(grouped)
    enqueue_attention(launch, kernel, digits, arguments)


def enqueue_attention(
    launch: LaunchQueue, kernel: IncrementalAttention, digits: Mapping[str, int], arguments: Mapping[str, Any]
) -> None:  # fmt: skip
    """Launch a kernel of a token's attention, which writes `digits` of its result, if it has such a field, beside it."""
    if digits:
        out = arguments["out"].view(0, (kernel.heads * kernel.head_dim,))
        launch.packed.write(launch, "attention", kernel, out, digits["digits"], **arguments)
    else:
        launch("attention", kernel, **arguments)
