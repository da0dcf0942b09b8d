"""The dimensions of a transformer layer. Holds no weights and runs nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

RopeStyle = Literal["adjacent", "neox"]
ROPE_STYLES: Final[tuple[RopeStyle, ...]] = get_args(RopeStyle)


@dataclass(frozen=True)
class LayerShape:
    """The dimensions of a layer. rope_style: pairs (2i, 2i+1) are rotated for "adjacent", (i, i + head_dim/2) for "neox", in
    the first rope_dim values of a head. ranks: how many devices share the heads and the rows of every matrix equally; all sizes
    are those of the whole layer."""

    hidden: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    rope_style: RopeStyle
    rope_dim: int
    ranks: int = 1

    @property
    def own(self) -> LayerShape:
        """That of the heads of one rank."""
        if self.ranks == 1:
            return self
        return replace(self, heads=self.heads // self.ranks, kv_heads=self.kv_heads // self.ranks, ranks=1)

    @property
    def q_dim(self) -> int:
        """Width of the queries of one token."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of the keys, and of the values, of one token."""
        return self.kv_heads * self.head_dim
