"""What a model computes, as data: blocks, norms, head. An architecture (executor/model/architectures) reads it from a file, and
all else reads it here. Holds no weights and runs nothing.

Sizes are counts of values, layers, heads or tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from executor.layers.shape import (
    LLAMA,
    PRE_NORMS,
    BlockNorms,
    HeadSizes,
    LayerForm,
    LayerShape,
    NormKind,
    QkNorm,
    RopeStyle,
    Ungated,
)
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.scores import PLAIN_SCORES, Scoring
from ptxgen.kernels.attention.temperature import Temperature
from ptxgen.kernels.rope.frequencies import Yarn


@dataclass(frozen=True)
class NormSpec:
    """kind "rms": x / sqrt(mean(x^2) + eps) * gamma; "layer": (x - mean) / sqrt(var + eps) * gamma + beta. bias: there is a
    beta; weighted: there is a gamma."""

    eps: float
    kind: NormKind = "rms"
    bias: bool = False
    weighted: bool = True


@dataclass(frozen=True)
class RopeSpec:
    """style: the pairs (2i, 2i+1) of the first `dim` values of a head are rotated for "adjacent", (i, i + dim/2) for "neox".
    factors: the tensor with the divisors of the frequencies, f32[dim / 2], if there are any; long_factors: that for a context
    of more than `original_context` tokens. scale: of all frequencies, 0 where nothing is rotated; with `yarn`, of the share of
    each that it says (ptxgen/kernels/rope/frequencies.py); magnitude: of cosine and sine. still: pairs that are not
    rotated in a text."""

    style: RopeStyle
    dim: int
    base: float
    factors: str | None = None
    long_factors: str | None = None
    original_context: int = 0
    scale: float = 1.0
    yarn: Yarn | None = None
    magnitude: float = 1.0
    still: tuple[int, ...] = ()

    def factors_for(self, context: int) -> str | None:
        """The tensor of divisors for a context of so many tokens."""
        return self.long_factors if self.long_factors is not None and context > self.original_context else self.factors

    @property
    def tensors(self) -> tuple[str, ...]:
        """Those of divisors."""
        return tuple(name for name in (self.factors, self.long_factors) if name is not None)


@dataclass(frozen=True)
class Attention(HeadSizes):
    """Causal attention; query head h reads key-value head h // (heads // kv_heads). kv_heads 0: attn_output alone stands for
    it, a matrix of the width of the stream; heads 0: nothing does. value_dim: of a head of values, where that of keys is
    another. scores: which keys a query sees, and what becomes of its scores. qk_norm: of queries and keys; qk_norm_of: of what;
    clamp, temperature, gated: see LayerForm. fused: the matrices of Q, K and V are one tensor."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeSpec
    qk_norm: NormSpec | None = None
    qk_norm_of: QkNorm = "heads"
    scores: Scoring = PLAIN_SCORES
    clamp: float = 0.0
    temperature: Temperature | None = None
    gated: bool = False
    fused: bool = False
    value_dim: int | None = None


@dataclass(frozen=True)
class Dense:
    """A feed-forward network of width `ff`: down(activation(gate(x)) * up(x)), or down(activation(up(x))) if it is not gated;
    none where ff is 0. fused: the matrices of gate and up are one tensor; scaled: what `down` multiplies is divided by
    ffn.act.scales."""

    ff: int
    activation: Ungated = "silu"
    gated: bool = True
    fused: bool = False
    scaled: bool = False


@dataclass(frozen=True)
class Norms:
    """The norms of a block, all of one kind, and where they stand. output_eps: see LayerForm."""

    norm: NormSpec
    at: BlockNorms = PRE_NORMS
    output_eps: float | None = None


@dataclass(frozen=True)
class Block:
    """A layer; what it does with its matrices is its `form`. biases, scales: the roles of the matrices that have one, as
    `attn_q`."""

    mixer: Attention
    ffn: Dense
    norms: Norms
    parallel: bool = False
    residual_scale: float = 1.0
    biases: frozenset[str] = frozenset()
    scales: frozenset[str] = frozenset()

    @property
    def form(self) -> LayerForm:
        """What it does with its matrices."""
        return LayerForm(
            norms=self.norms.at,
            norm_kind=self.norms.norm.kind,
            norms_weighted=self.norms.norm.weighted,
            parallel=self.parallel,
            activation=self.ffn.activation,
            gated=self.ffn.gated,
            scaled=self.ffn.scaled,
            residual_scale=self.residual_scale,
            scores=self.mixer.scores,
            qk_norm=self.mixer.qk_norm_of,
            clamp=self.mixer.clamp,
            temperature=self.mixer.temperature,
            gated_attention=self.mixer.gated,
            output_eps=self.norms.output_eps,
        )


@dataclass(frozen=True)
class ModelSpec:
    """A decoder: a table of `vocab` embeddings of width `hidden`, blocks, `norm` and the output head.

    tied: the output head is the embedding table; head_bias, head_scale: it has one. embedding_scale, embedding_norm: of
    embeddings; learned_positions: a table has a vector for each position, which is added to the embedding; logit_scale: of
    logits, before logit_softcap c > 0 makes them c * tanh(logit / c). context_length: tokens it was trained on. pooling_type:
    how a text becomes one vector, by llama.cpp's numbers (embedding.py); 0 where the file does not say it. labels: between
    which a head of its own (cls.output) decides, as rerankers have one (ranking.py). unused: what tensors begin with that files
    may have and that no token needs. ranks: how many devices share the model (split.py); the sizes are those of the whole."""

    architecture: str
    vocab: int
    hidden: int
    context_length: int
    blocks: tuple[Block, ...]
    norm: NormSpec
    tied: bool
    pooling_type: int
    head_bias: bool = False
    head_scale: bool = False
    embedding_norm: NormSpec | None = None
    learned_positions: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    labels: int = 0
    unused: tuple[str, ...] = ()
    ranks: int = 1

    @property
    def layers(self) -> int:
        """How many blocks there are."""
        return len(self.blocks)

    def shape(self, block: Block) -> LayerShape:
        """The dimensions of a block."""
        mixer, ffn = block.mixer, block.ffn
        return LayerShape(
            hidden=self.hidden,
            ff=ffn.ff,
            heads=mixer.heads,
            kv_heads=mixer.kv_heads,
            head_dim=mixer.head_dim,
            value_dim=mixer.value_dim,
            rms_eps=block.norms.norm.eps,
            rope_style=mixer.rope.style,
            rope_dim=mixer.rope.dim,
            ranks=self.ranks,
            form=block.form,
        )

    @cached_property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The dimensions and the form of each block."""
        made = {block: self.shape(block) for block in set(self.blocks)}
        return tuple(made[block] for block in self.blocks)

    @cached_property
    def layer(self) -> LayerShape:
        """That of the first block with the most heads to a key-value head, by which attention is chosen for all. Blocks may
        differ in how many of these they have and in the width of their networks."""
        return max(self.shapes, key=lambda shape: shape.heads / shape.kv_heads if shape.kv_heads else 0.0)

    @property
    def cached(self) -> tuple[int, ...]:
        """The numbers of the blocks that have keys and values."""
        return tuple(number for number, shape in enumerate(self.shapes) if shape.kv_heads)

    @property
    def cached_heads(self) -> tuple[int, ...]:
        """The key-value heads of these, as far as a rank has them."""
        return tuple(self.shapes[number].own.kv_heads for number in self.cached)

    def cache_of(self, layer: int) -> int:
        """Which of the caches of `cached` a block has."""
        return self.cached.index(layer)

    def require_equal_layers(self, why: str) -> None:
        """ArgumentError, with the reason, for a model whose blocks differ in size."""
        if len({replace(shape, form=LLAMA, rms_eps=0.0) for shape in self.shapes}) > 1:
            said = f"layers of this model of {self.architecture} differ in size"
            raise ArgumentError(f"{why}, and {said}; allowed: layers of one size")

    @cached_property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """The rotations that blocks have, each once."""
        return tuple(dict.fromkeys(block.mixer.rope for block in self.blocks))

    def rope_of(self, layer: int) -> int:
        """Which of `ropes` a layer has."""
        return self.ropes.index(self.blocks[layer].mixer.rope)
