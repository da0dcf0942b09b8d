"""The dimensions of a transformer layer, and what it does with its matrices. Holds no weights and runs nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol, get_args

from ptxgen.kernels.attention.scores import PLAIN_SCORES, Scoring
from ptxgen.kernels.attention.temperature import Temperature
from ptxgen.kernels.shape import ValueWidth, Widths

RopeStyle = Literal["adjacent", "neox"]
ROPE_STYLES: Final[tuple[RopeStyle, ...]] = get_args(RopeStyle)
NormKind = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "relu2", "sigmoid"]


@dataclass(frozen=True)
class XieluNumbers:
    """An activation with numbers, all above 0: see ptxgen/kernels/activation/elementwise.py."""

    alpha_n: float
    alpha_p: float
    beta: float
    margin: float


Ungated = Activation | XieluNumbers
"""What a network without a gate may have."""
QkNorm = Literal["heads", "row", "rotated", "rows"]


@dataclass(frozen=True)
class BlockNorms:
    """Where the norms of a layer stand, by their tensors without `.weight`; None: there is none. The first and the third
    normalise what attention and the feed-forward network read, the second and the fourth what these add to the residual stream,
    and the last two what their last matrices multiply."""

    attention: str | None = "attn_norm"
    attention_output: str | None = None
    ffn: str | None = "ffn_norm"
    ffn_output: str | None = None
    attended: str | None = None
    activated: str | None = None

    @property
    def tensors(self) -> tuple[str, ...]:
        """Those of the residual stream that there are."""
        named = (self.attention, self.attention_output, self.ffn, self.ffn_output)
        return tuple(name for name in named if name is not None)


PRE_NORMS: Final = BlockNorms()


@dataclass(frozen=True)
class LayerForm:
    """What a layer does with its matrices. The defaults are Llama's.

    norm_kind "rms": x / sqrt(mean(x^2) + eps) * gamma; "layer": (x - mean(x)) / sqrt(var(x) + eps) * gamma + beta;
    norms_weighted: whether the norms of the stream have gamma. parallel: attention and the feed-forward network both read the
    layer's input, and both are added to it. gated: the network is
    down(activation(gate(x)) * up(x)), else down(activation(up(x))). residual_scale: of what is added to the stream. scores:
    which keys a query sees, and what becomes of its scores. qk_norm: of the queries and of the keys, before the rotation;
    "heads": each head by itself; "row": all heads as one row; "rotated": each head by itself, after the rotation; "rows":
    each head by itself, with gammas of its own. clamp: the largest magnitude of queries, keys and values; 0: any.
    scaled: what the last matrix of the network multiplies is divided by a vector before (AWQ).
    temperature: what multiplies queries by their position, if anything does. gated_attention: what queries attend to is
    multiplied by the sigmoid of another product of what they are products of. output_eps: of the norms of what is added to
    the stream; None: that of the others."""

    norms: BlockNorms = PRE_NORMS
    norm_kind: NormKind = "rms"
    norms_weighted: bool = True
    parallel: bool = False
    activation: Ungated = "silu"
    gated: bool = True
    scaled: bool = False
    residual_scale: float = 1.0
    scores: Scoring = PLAIN_SCORES
    qk_norm: QkNorm = "heads"
    clamp: float = 0.0
    temperature: Temperature | None = None
    gated_attention: bool = False
    output_eps: float | None = None

    @property
    def adds_biases_first(self) -> bool:
        """Whether biases of Q, K and V are added where these are made, and not with the rotation."""
        return self.qk_norm == "row" or self.clamp > 0.0

    @property
    def rotates_apart(self) -> bool:
        """Whether queries and keys go through more than the kernels that rotate and append do at once."""
        return self.qk_norm in ("rotated", "rows") or self.temperature is not None

    @property
    def norms_twice(self) -> bool:
        """Whether two normalised vectors of a token are needed at a time: one of what is added to the stream, or one for the
        feed-forward network beside that for attention."""
        added = (self.norms.attention_output, self.norms.ffn_output) != (None, None)
        return added or (self.parallel and self.norms.ffn is not None)


LLAMA: Final = LayerForm()


class _Heads(Widths, Protocol):
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def value_width(self) -> int: ...


class HeadSizes(ValueWidth):
    """What a token has in all heads of a layer."""

    @property
    def q_dim(self: _Heads) -> int:
        """Width of the queries."""
        return self.heads * self.head_dim

    @property
    def k_dim(self: _Heads) -> int:
        """Width of the keys."""
        return self.kv_heads * self.head_dim

    @property
    def v_dim(self: _Heads) -> int:
        """Width of the values."""
        return self.kv_heads * self.value_width

    @property
    def attended_dim(self: _Heads) -> int:
        """Width of what the queries attend to."""
        return self.heads * self.value_width


@dataclass(frozen=True)
class LayerShape(HeadSizes):
    """The dimensions of a layer, and its form. heads 0: it has no attention; kv_heads 0, beside heads: attn_output alone, as
    wide as the stream, stands for it; ff 0: no feed-forward network. value_dim: of a head of values, where that of keys is
    another. rope_style: pairs (2i, 2i+1) are rotated for "adjacent", (i, i + rope_dim/2) for "neox", in the first rope_dim
    values of a head. rms_eps: of its norms, whatever their kind. ranks: how many devices share the heads and the rows of every
    matrix equally; all sizes are those of the whole layer."""

    hidden: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    rope_style: RopeStyle
    rope_dim: int
    ranks: int = 1
    form: LayerForm = LLAMA
    value_dim: int | None = None

    @property
    def own(self) -> LayerShape:
        """That of the heads of one rank."""
        if self.ranks == 1:
            return self
        return replace(self, heads=self.heads // self.ranks, kv_heads=self.kv_heads // self.ranks, ranks=1)

    @property
    def mixed_dim(self) -> int:
        """Width of what attn_output multiplies."""
        return self.attended_dim if self.kv_heads else self.hidden
