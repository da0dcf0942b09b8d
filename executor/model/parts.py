"""Parts that architectures have, and how each is read from a file. Keys and defaults are those of llama.cpp
(src/llama-model.cpp, src/models). Rotations: ropes.py; the tensors that a model needs: tensors.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from executor.gguf.directory import Value
from executor.layers.shape import PRE_NORMS, Activation, BlockNorms, NormKind, QkNorm, Ungated
from executor.model.metadata import MAX_CONTEXT, Metadata
from executor.model.spec import Attention, Block, Dense, ModelSpec, Norms, NormSpec, RopeSpec
from executor.model.tensors import matrices_of
from ptxgen.kernels.attention.scores import PLAIN_SCORES, Scoring
from ptxgen.kernels.attention.temperature import Temperature

DENSE: Final[dict[str, tuple[Value, ...]]] = {
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
}
"""Keys of every decoder without experts, with the values with which it is computed."""
ONE_EXPERT: Final[dict[str, tuple[Value, ...]]] = DENSE | {"expert_count": (0, 1), "expert_used_count": (0, 1)}
"""Those of decoders whose files may count their one network as an expert."""
LATER_PRE_NORM: Final = BlockNorms(ffn="post_attention_norm")
"""A norm before attention, and one before the feed-forward network that is called by what it stands behind."""
SANDWICH: Final = BlockNorms(attention_output="post_attention_norm", ffn_output="post_ffw_norm")
"""One before and one behind attention, and so for the feed-forward network."""
POST_NORMS: Final = BlockNorms(None, "post_attention_norm", None, "post_ffw_norm")
"""Only behind."""
SHARED_NORM: Final = BlockNorms(ffn=None)
"""One, which attention and the feed-forward network both read."""
MATRICES: Final = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
Window = Callable[[int], int | None]
QKV_BIASES: Final = frozenset(("attn_q", "attn_k", "attn_v"))


def dense_decoder(
    m: Metadata,
    rope: RopeSpec | Callable[[int], RopeSpec],
    *,
    norm: NormKind = "rms",
    weighted: bool = True,
    norms: BlockNorms = PRE_NORMS,
    parallel: bool = False,
    activation: Activation | Callable[[int], Ungated] = "silu",
    gated: bool = True,
    fused_gate: bool = False,
    gaps: bool = False,
    ff_share: int = 1,
    epsilon: float | None = None,
    qk_norm: bool | None = False,
    qk_norm_of: QkNorm = "heads",
    scores: Scoring | Callable[[int], Scoring] = PLAIN_SCORES,
    output_eps: float | None = None,
    clamp: float = 0.0,
    temperature: Temperature | None = None,
    gated_attention: bool = False,
    embedding_norm: NormSpec | None = None,
    learned_positions: bool = False,
    scaled_activations: bool = False,
    residual_scale: float = 1.0,
    embedding_scale: float = 1.0,
    logit_scale: float = 1.0,
    logit_softcap: float = 0.0,
    classifier: bool = False,
) -> ModelSpec:
    """A decoder of blocks of attention and a dense feed-forward network. The defaults are Llama's.

    rope, scores, activation: of every layer, or by its number. weighted: whether norms of the stream have weights; epsilon: of
    norms, where the file does not say it. qk_norm: whether queries and keys are normalised; None: where the file has the
    tensors. fused_gate: gate and up may be one tensor; scaled_activations: layers may have ffn.act.scales; gaps: layers may
    lack attention, or the network, and then as in llama.cpp both; ff_share: the length in the file is so many times the
    network's width; classifier: files may have one. See spec.py for the others."""
    layers, spec = m.layers(), replace(norm_spec(m, norm, epsilon, "output_norm"), weighted=weighted)
    least, hidden = 0 if gaps else 1, m.integer("embedding_length")
    sizes = attention_sizes(m, least)
    widths = [width // ff_share for width in m.per_layer("feed_forward_length", least=least)]

    def block(layer: int) -> Block:
        heads, kv_heads, head_dim, value_dim = sizes[layer] if widths[layer] else (0, 0, *sizes[layer][2:])
        name = f"blk.{layer}."
        at = replace(norms, attention=norms.attention if heads else None, ffn=norms.ffn if widths[layer] else None)
        biases = frozenset(role for role in _biases(m, name) if (kv_heads if role.startswith("attn_") else widths[layer]))
        normed = m.has(f"{name}attn_q_norm.weight") if qk_norm is None else qk_norm
        own = replace(norm_spec(m, norm, epsilon, *(name + tensor for tensor in at.tensors)), weighted=weighted)
        of_heads = norm_spec(m, norm, epsilon, *([f"{name}attn_q_norm"] if qk_norm_of == "row" else []))
        mixer = Attention(
            heads,
            kv_heads,
            head_dim,
            rope if isinstance(rope, RopeSpec) else rope(layer),
            qk_norm=of_heads if normed else None,
            qk_norm_of=qk_norm_of,
            scores=scores if isinstance(scores, Scoring) else scores(layer),
            clamp=clamp,
            temperature=temperature,
            gated=gated_attention,
            fused=m.has(f"{name}attn_qkv.weight"),
            value_dim=value_dim,
        )
        activated = activation if isinstance(activation, str) else activation(layer)
        fused = fused_gate and not m.has(f"{name}ffn_gate.weight")
        scaled = scaled_activations and m.has(f"{name}ffn.act.scales")
        ffn = Dense(widths[layer], activated, gated, fused, scaled)
        block = Block(mixer, ffn, Norms(own, at, output_eps), parallel, residual_scale, biases)
        roles = matrices_of(mixer, ffn, hidden)
        return replace(block, scales=frozenset(role for role in roles if m.has(f"{name}{role}.scale")))

    blocks = tuple(block(layer) for layer in range(layers))
    if not any(block.mixer.kv_heads for block in blocks):
        m.fail(f"{m.name('attention.head_count_kv')} gives no layer attention; allowed: at least one with it")
    return ModelSpec(
        architecture=m.architecture,
        vocab=m.vocab(),
        hidden=hidden,
        context_length=m.integer("context_length", most=MAX_CONTEXT),
        blocks=blocks,
        norm=spec,
        tied=not m.has("output.weight"),
        pooling_type=m.pooling_type(),
        head_bias=m.has("output.bias"),
        head_scale=m.has("output.weight") and m.has("output.scale"),
        embedding_norm=embedding_norm,
        learned_positions=learned_positions,
        embedding_scale=embedding_scale,
        logit_scale=logit_scale,
        logit_softcap=logit_softcap,
        labels=m.labels() if classifier and m.has("cls.output.weight") else 0,
        unused=(*_without_use(blocks), *(f"blk.{layer}." for layer in range(layers, m.blocks()))),
    )


def _without_use(blocks: Sequence[Block]) -> Iterator[str]:
    """What names of tensors begin with that files may have of layers without attention or network."""
    for layer, block in enumerate(blocks):
        if not block.mixer.kv_heads:
            yield f"blk.{layer}.{'attn_output.bias' if block.ffn.ff else 'attn_'}"


def norm_spec(m: Metadata, kind: NormKind, default: float | None, *tensors: str) -> NormSpec:
    """A norm of this kind; it has a bias if one of the tensors, named without `.weight`, does. default: its epsilon, where the
    file does not say it."""
    eps = m.epsilon("attention.layer_norm_rms_epsilon" if kind == "rms" else "attention.layer_norm_epsilon", default)
    return NormSpec(eps, kind, kind == "layer" and any(m.has(f"{tensor}.bias") for tensor in tensors))


def attention_sizes(m: Metadata, least: int = 1) -> Sequence[tuple[int, int, int, int | None]]:
    """Heads and key-value heads of each layer, at least so many, the width of a head, and that of its values, if it
    is another."""
    heads = m.per_layer("attention.head_count", least=least)
    kv_heads = m.per_layer("attention.head_count_kv", heads, least)
    for own, kv in zip(heads, kv_heads, strict=True):
        if kv and (own % kv or not own):
            m.fail(f"{m.name('attention.head_count')} is {own}, which {kv} key-value heads do not divide")
    widths = _widths(m, m.integer("embedding_length"), next((own for own in heads if own), 1))
    return [(own, kv, *widths) for own, kv in zip(heads, kv_heads, strict=True)]


def head_dim(m: Metadata, least: int = 1) -> int:
    """The width of a head. least: heads that a layer may have."""
    return attention_sizes(m, least)[0][2]


def windows(m: Metadata, pattern: int, *, default: int | None = None) -> Window:
    """By layer, how many positions a token sees, its own included; None: all. Of `pattern` layers the last sees all, unless the
    file has another number, or lists the layers with a window. default: the width where the file has none; None: then no layer
    has a window."""
    width = m.get("attention.sliding_window")
    if (default is None and width is None) or width == 0:
        return unwindowed
    wide = m.integer("attention.sliding_window", default, most=MAX_CONTEXT)
    listed = m.whole_numbers("attention.sliding_window_pattern")
    if listed is not None:
        if len(listed) < m.layers():
            m.fail(f"{m.name('attention.sliding_window_pattern')} has {len(listed)} values for {m.layers()} layers")
        return lambda layer: wide if listed[layer] else None
    count = m.integer("attention.sliding_window_pattern", pattern)
    return lambda layer: wide if layer % count < count - 1 else None


def unwindowed(layer: int) -> int | None:
    """That of a layer that sees all positions."""
    return None


def query_scale(m: Metadata, large: int) -> float | None:
    """The factor of scores in Gemma 2 and 3: that of the width of a head, but in the model of so many layers of a width of
    embedding / heads."""
    heads = m.per_layer("attention.head_count")[0]
    return (m.integer("embedding_length") // heads) ** -0.5 if m.layers() == large else None


def alibi(m: Metadata, scale: float | None = None) -> Scoring:
    """Scores of this scale, with ALiBi where the file has it."""
    return Scoring(scale=scale, alibi=max(m.number("attention.max_alibi_bias", 0.0), 0.0))


def _biases(m: Metadata, block: str) -> frozenset[str]:
    """The matrices of a layer that have one in the file, by role; those of a fused tensor are of its parts."""
    found = {role for role in MATRICES if m.has(f"{block}{role}.bias")}
    if m.has(f"{block}attn_qkv.bias"):
        found |= QKV_BIASES
    return frozenset(found)


def _widths(m: Metadata, hidden: int, heads: int) -> tuple[int, int | None]:
    if None in (m.get("attention.key_length"), m.get("attention.value_length")) and hidden % heads:
        m.fail(f"{m.name('embedding_length')} is {hidden}, which {heads} heads do not divide")
    keys = m.integer("attention.key_length", hidden // heads or None)
    values = m.integer("attention.value_length", hidden // heads or None)
    if keys % 2:
        m.fail(f"{m.name('attention.key_length')} is {keys}; rotary embedding needs an even number")
    return keys, None if values == keys else values
