"""Parts that several architectures have: how each is read from a file, and which tensors it needs. Keys and defaults are
those of llama.cpp (src/llama-model.cpp)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from executor.gguf.directory import Value
from executor.layers.shape import RopeStyle
from executor.model.architecture import Shapes
from executor.model.metadata import MAX_CONTEXT, Metadata
from executor.model.spec import Attention, Block, Dense, ModelSpec, Norms, NormSpec, RopeSpec

DENSE: Final[dict[str, tuple[Value, ...]]] = {
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
}
"""Keys of every decoder without experts, with the values with which it is computed."""
ROPE_FACTORS: Final = "rope_freqs.weight"


def decoder(m: Metadata, blocks: Iterable[Block], norm: NormSpec) -> ModelSpec:
    """These blocks between a table of embeddings and a head, which is the table if the file has no other."""
    return ModelSpec(
        architecture=m.architecture,
        vocab=m.vocab(),
        hidden=m.integer("embedding_length"),
        context_length=m.integer("context_length", most=MAX_CONTEXT),
        blocks=tuple(blocks),
        norm=norm,
        tied=not m.has("output.weight"),
        pooling_type=m.pooling_type(),
    )


def pre_norm_decoder(m: Metadata, *, rope_style: RopeStyle, bias: bool | None = None, qk_norm: bool = False) -> ModelSpec:
    """A decoder of blocks of attention and SwiGLU, an RMSNorm before each. bias, qk_norm: as `attentions`."""
    layers, norm = m.layers(), NormSpec(m.epsilon("attention.layer_norm_rms_epsilon"))
    mixers = attentions(m, layers, rope_style=rope_style, bias=bias, qk_norm=norm if qk_norm else None)
    widths = m.per_layer("feed_forward_length", layers)
    blocks = (Block(mixer, Dense(ff), Norms(norm, norm)) for mixer, ff in zip(mixers, widths, strict=True))
    return decoder(m, blocks, norm)


def attentions(
    m: Metadata, layers: int, *, rope_style: RopeStyle, bias: bool | None, qk_norm: NormSpec | None
) -> Sequence[Attention]:
    """That of each layer. bias: whether Q, K and V have biases; None: in those layers in which the file has some."""
    hidden, heads = m.integer("embedding_length"), m.per_layer("attention.head_count", layers)
    found = []
    for layer, (own, kv) in enumerate(zip(heads, m.per_layer("attention.head_count_kv", layers, heads), strict=True)):
        if own % kv:
            m.fail(f"{m.name('attention.head_count')} is {own}, which {kv} key-value heads do not divide")
        head_dim = _head_dim(m, hidden, own)
        biased = m.has(f"blk.{layer}.attn_q.bias") if bias is None else bias
        found.append(Attention(own, kv, head_dim, rope(m, rope_style, head_dim), biased, qk_norm))
    return found


def _head_dim(m: Metadata, hidden: int, heads: int) -> int:
    if m.get("attention.key_length") is None and hidden % heads:
        m.fail(f"{m.name('embedding_length')} is {hidden}, which {heads} heads do not divide")
    keys = m.integer("attention.key_length", hidden // heads or None)
    values = m.integer("attention.value_length", hidden // heads or None)
    if keys != values:
        m.fail(f"{m.name('attention.value_length')} is {values}, and heads of keys have {keys} values; they must be equal")
    if keys % 2:
        m.fail(f"{m.name('attention.key_length')} is {keys}; rotary embedding needs an even number")
    return keys


def rope(m: Metadata, style: RopeStyle, head_dim: int) -> RopeSpec:
    """A rotation of whole heads that nothing scales but the divisors that the file may have (Llama-3)."""
    m.only({"rope.scaling.type": ("none", "linear"), "rope.scaling.attn_factor": (1.0,)})
    if m.get("rope.scaling.type") != "none":
        m.only({"rope.scaling.factor": (0.0, 1.0), "rope.scale_linear": (0.0, 1.0)})
    rotated = m.integer("rope.dimension_count", head_dim)
    if rotated != head_dim:
        m.fail(f"{m.name('rope.dimension_count')} is {rotated}; only the whole head of {head_dim} can be rotated")
    factors = ROPE_FACTORS if m.has(ROPE_FACTORS) else None
    return RopeSpec(style, rotated, m.positive("rope.freq_base", 10000.0), factors)


def pre_norm_tensors(spec: ModelSpec) -> Shapes:
    """Those of `pre_norm_decoder`."""
    shapes = dict(outer_tensors(spec))
    for layer, block in enumerate(spec.blocks):
        own = {"attn_norm.weight": (spec.hidden,), **attention_tensors(block.mixer, spec.hidden)}
        own |= {"ffn_norm.weight": (spec.hidden,), **swiglu_tensors(block.ffn, spec.hidden)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    return shapes


def outer_tensors(spec: ModelSpec) -> Shapes:
    """Embeddings, head, and divisors of rotations."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (spec.vocab, spec.hidden),
        "output_norm.weight": (spec.hidden,),
    }
    if not spec.tied:
        shapes["output.weight"] = (spec.vocab, spec.hidden)
    ropes = (block.mixer.rope for block in spec.blocks)
    return shapes | {rope.factors: (rope.dim // 2,) for rope in ropes if rope.factors is not None}


def attention_tensors(mixer: Attention, hidden: int) -> Shapes:
    """Of one layer."""
    q, kv = mixer.q_dim, mixer.kv_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q.weight": (q, hidden),
        "attn_k.weight": (kv, hidden),
        "attn_v.weight": (kv, hidden),
        "attn_output.weight": (hidden, q),
    }
    if mixer.bias:
        shapes |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if mixer.qk_norm is not None:
        shapes |= {"attn_q_norm.weight": (mixer.head_dim,), "attn_k_norm.weight": (mixer.head_dim,)}
    return shapes


def swiglu_tensors(ffn: Dense, hidden: int) -> Shapes:
    """Of one layer."""
    return {"ffn_gate.weight": (ffn.ff, hidden), "ffn_up.weight": (ffn.ff, hidden), "ffn_down.weight": (hidden, ffn.ff)}
