"""What a model computes, as data: blocks, norms, head. An architecture (executor/model/architectures) reads it from a file, and
all else reads it here. Holds no weights and runs nothing.

Sizes are counts of values, layers, heads or tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from executor.layers.shape import LayerShape, RopeStyle


@dataclass(frozen=True)
class NormSpec:
    """kind "rms": x / sqrt(mean(x^2) + eps) * gamma."""

    eps: float
    kind: Literal["rms"] = "rms"


@dataclass(frozen=True)
class RopeSpec:
    """style: the pairs (2i, 2i+1) of the first `dim` values of a head are rotated for "adjacent", (i, i + dim/2) for "neox".
    factors: the tensor with the divisors of the frequencies, f32[dim / 2], if there are any."""

    style: RopeStyle
    dim: int
    base: float
    factors: str | None = None


@dataclass(frozen=True)
class Attention:
    """Causal attention over all positions; query head h reads key-value head h // (heads // kv_heads), and scores are scaled by
    1 / sqrt(head_dim). bias: Q, K and V have biases. qk_norm: the norm of each head of Q and K before the rotation."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeSpec
    bias: bool = False
    qk_norm: NormSpec | None = None

    @property
    def q_dim(self) -> int:
        """Width of the queries of one token."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of the keys, and of the values, of one token."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True)
class Dense:
    """A feed-forward network of width `ff`. activation "swiglu": down(silu(gate(x)) * up(x))."""

    ff: int
    activation: Literal["swiglu"] = "swiglu"


@dataclass(frozen=True)
class Norms:
    """Where the norms of a block stand: before the mixer, and before the feed-forward network."""

    mixer: NormSpec
    ffn: NormSpec


@dataclass(frozen=True)
class Block:
    """a = x + mixer(norms.mixer(x)); y = a + ffn(norms.ffn(a))."""

    mixer: Attention
    ffn: Dense
    norms: Norms


@dataclass(frozen=True)
class ModelSpec:
    """A decoder: a table of `vocab` embeddings of width `hidden`, blocks, `norm` and the output head.

    tied: the output head is the embedding table. context_length: tokens it was trained on. pooling_type: how a text becomes one
    vector, by llama.cpp's numbers (embedding.py); 0 where the file does not say it. ranks: how many devices share the model
    (split.py); the sizes are those of the whole."""

    architecture: str
    vocab: int
    hidden: int
    context_length: int
    blocks: tuple[Block, ...]
    norm: NormSpec
    tied: bool
    pooling_type: int
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
            rms_eps=block.norms.mixer.eps,
            rope_style=mixer.rope.style,
            rope_dim=mixer.rope.dim,
            ranks=self.ranks,
        )

    @cached_property
    def layer(self) -> LayerShape:
        """The dimensions of every block: those of a file are all the same (read_spec)."""
        (shape,) = {self.shape(block) for block in set(self.blocks)}
        return shape

    @cached_property
    def rope(self) -> RopeSpec:
        """The rotation in every block."""
        (rope,) = {block.mixer.rope for block in self.blocks}
        return rope
