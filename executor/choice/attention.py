"""Chooses how the rows of a step attend: runs of one sequence's rows by tiles of tensor cores, others each on its own; and how
the one token of `generate` does. Measures nothing (benchmarks/paged_attention.py does)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from executor.base.rules import RULES, Rule
from executor.choice.choice import GpuProfile
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.attention.flash_attention import FlashAttention
from ptxgen.kernels.attention.suited import TOKEN_LEAST, TOKEN_SHORT, Suited, splits_for, suited
from ptxgen.kernels.attention.token_split import LastBlock
from ptxgen.target import Target

LAST_BLOCK: Final = "paged_attention_merged"
ROPE: Final[Rule] = RULES["rope_fused_attention"]


@dataclass(frozen=True)
class AttentionChoice:
    """How rows over a paged cache attend, and why. parts: of flash_attention, which runs of `least_run` rows of a sequence or
    more go to in tiles of up to `tile_rows`; 0 where no row does. alone: settings of paged_attention, for all others;
    last_block: these in one launch, with the same bits."""

    parts: int
    least_run: int
    tile_rows: int
    alone: Suited
    reason: str
    last_block: bool = False

    @property
    def others(self) -> str:
        """The kernel for rows on their own."""
        return LAST_BLOCK if self.last_block else "paged_attention"

    def tiled(self, rows: int) -> bool:
        """Whether some of so many rows may attend in tiles."""
        return self.parts > 0 and rows >= self.least_run

    def most_tiles(self, rows: int) -> int:
        """The most tiles that so many rows make: one in each run may be short, and no run is shorter than least_run."""
        return max(1, rows // self.tile_rows + rows // self.least_run)

    def __str__(self) -> str:
        kernels = f"flash_attention, parts={self.parts}, else {self.others}" if self.parts else self.others
        return f"{kernels} ({self.reason})"

    def facts(self) -> dict[str, object]:
        """Ready for JSON."""
        tiled = {"kernel": "flash_attention", "parts": self.parts, "rows": self.least_run} if self.parts else None
        return {"runs": tiled, "others": self.others, "reason": self.reason}


def choose_attention(
    profile: GpuProfile,
    target: Target,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    kv_type: str,
    value_dim: int | None = None,
) -> AttentionChoice:
    """What a profile says for a model's heads on a target."""
    sizes: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "kv_type": kv_type}
    alone = suited(target, **sizes | {"head_dim": max(head_dim, value_dim or 0)})
    never = AttentionChoice(0, 1, 1, alone, "", profile.allows("last_block_reduction"))
    return _in_tiles(profile, target, never, sizes | {"value_dim": value_dim})


def _in_tiles(profile: GpuProfile, target: Target, never: AttentionChoice, sizes: Mapping[str, Any]) -> AttentionChoice:
    """`never`, with tiles for runs of rows where there are any, and the reason."""
    if profile.allows("batch_invariant"):
        return replace(never, reason="the profile is batch_invariant: a row attends as if it were alone")
    if profile.tile_run == 0:
        return replace(never, reason="the profile's tile_run is 0: every row attends on its own")
    parts = 1 if profile.precision == "fast" else 2
    try:
        kernel = FlashAttention(rows=1, **sizes, page_len=32, pages=1, slots=1, max_len=32, tiles=1, parts=parts)
    except ArgumentError as error:
        return replace(never, reason=str(error))
    if target.sm < kernel.least_sm:
        return replace(never, reason=f"flash_attention needs sm_{kernel.least_sm}, this is {target}")
    reason = f"{profile.precision}: {profile.tile_run} rows of a sequence or more in tiles of {kernel.tile_rows}"
    return replace(never, parts=parts, least_run=profile.tile_run, tile_rows=kernel.tile_rows, reason=reason)


@dataclass(frozen=True)
class TokenAttentionChoice:
    """How the one token of `generate` attends to the cache of its sequence: by grouped_attention on every device, since bits
    depend on `splits`, `least` and `short`. rope_fused: the same launch rotates and keeps what it attends to, with the same
    bits, if there is a kernel for the heads. reason: why it does or not."""

    splits: int
    least: int
    short: int
    reason: str
    rope_fused: bool = False

    kernel: ClassVar[str] = "grouped_attention"
    """The kernel's name, without what it is made with."""

    def __str__(self) -> str:
        splits = f", splits={self.splits} beyond {self.short} positions"
        return f"{self.kernel}{splits}{', with rotation and store' if self.rope_fused else ''} ({self.reason})"

    def facts(self) -> dict[str, object]:
        """Ready for JSON."""
        return {"kernel": self.kernel, "splits": self.splits, "rope_fused": self.rope_fused, "reason": self.reason}


def choose_token_attention(
    profile: GpuProfile, *, heads: int, kv_heads: int, head_dim: int, value_dim: int | None = None
) -> TokenAttentionChoice:
    """What a profile says for a model's heads."""
    apart = attention_of_one(heads=heads, kv_heads=kv_heads, head_dim=head_dim, value_dim=value_dim)
    if not profile.allows(ROPE.name):
        return replace(apart, reason=f"the profile's {ROPE.name} is off")
    if value_dim not in (None, head_dim):
        return replace(apart, reason=f"heads of keys have {head_dim} values, and those of values {value_dim}")
    return replace(apart, reason=f"the profile's {ROPE.name} is on", rope_fused=True)


def attention_of_one(*, heads: int, kv_heads: int, head_dim: int, value_dim: int | None = None) -> TokenAttentionChoice:
    """That of layers that are run one by one, after a launch that rotates."""
    split = LastBlock()
    sizes: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "value_dim": value_dim}
    kernel = ContiguousAttention(True, **sizes, max_len=1, split=split)  # refuses heads that it cannot have
    return TokenAttentionChoice(splits_for(split.groups(kernel)), TOKEN_LEAST, TOKEN_SHORT, "layers one by one")
