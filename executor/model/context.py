"""How long a sequence may be: what is asked for, and the least of what the file, the kernels and the memory allow; and the
memory for its keys and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from executor.base.arguments import whole
from executor.device.protocol import DeviceMemory
from executor.memory.kv_cache import KvCache
from executor.model.row_steps import CHUNK
from executor.model.spec import ModelSpec
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.attention_type import LONGEST

DEFAULT_CONTEXT: Final = 4096
"""Tokens; a model's own limit may be 131072, whose f32 cache would be too large a default."""


@dataclass(frozen=True)
class ContextLimit:
    """The most tokens of a sequence, and which file or kernel says so."""

    tokens: int
    reason: str

    @classmethod
    def of(cls, spec: ModelSpec) -> ContextLimit:
        """That of a model, on any device: what its file says, or less where attention kernels take no more."""
        key = f"{spec.architecture}.context_length"
        if spec.context_length <= LONGEST:
            return cls(spec.context_length, f"{key} of the file")
        return cls(LONGEST, f"the longest that attention kernels take; {key} of the file is {spec.context_length}")


def chosen_context(spec: ModelSpec, asked: int | None) -> int:
    """How many tokens a sequence gets room for: those that are asked for, or as many as the model can take up to
    DEFAULT_CONTEXT. ArgumentError, with the limit and where it comes from, for more than it can take."""
    limit = ContextLimit.of(spec)
    if asked is None:
        return min(limit.tokens, DEFAULT_CONTEXT)
    context = whole("context", asked)
    if not 1 <= context <= limit.tokens:
        raise ArgumentError(f"context must be 1 to {limit.tokens} ({limit.reason}), got {context}")
    return context


def new_cache(device: DeviceMemory, spec: ModelSpec, context: int) -> KvCache:
    """For the keys and values of one sequence on each of the devices that share the model, whose prompts go in steps of up to
    CHUNK tokens. Errors as KvCache."""
    windows = [spec.blocks[number].mixer.scores.window for number in spec.cached]
    layer = spec.layer
    return KvCache(
        device, len(spec.cached), spec.cached_heads, layer.head_dim, context, windows=windows, step=CHUNK,
        value_dim=layer.value_dim,
    )  # fmt: skip


def longest_that_fits(needed: Callable[[int], int], asked: int, free: int) -> int:
    """The most tokens below those asked for that memory has room for, in steps of a tenth; 0 if not even one has. needed: the
    bytes for so many tokens, which grow with them."""
    if needed(1) > free:
        return 0
    low, high = 1, asked
    while high - low > max(1, low // 10):
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= free else (low, middle)
    return low
