"""Moves a sequence on by one token: the position that the kernels of a captured graph read from a buffer, and the length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.types import U32


@register
@dataclass(frozen=True)
class AdvancePosition(KernelType):
    """position += 1 and length = position + 1, neither beyond max_len.

    position, length: u32[1]. A position of max_len means that no token has a place any more: rope and kv_cache_scatter ignore
    it, so a step too many overwrites nothing in the cache (its logits mean nothing). One thread.
    """

    family: ClassVar[str] = "token"
    name = "advance_position"
    max_len: int

    def __post_init__(self) -> None:
        require(self, "max_len", high=2**32 - 1)

    def signature(self) -> Signature:
        return {"position": update(U32, 1, align=4), "length": write(U32, 1, align=4)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=1, block=1)

    def emit(self, k: KernelBuilder) -> None:
        last = self.max_len - 1
        position = k.min(k.load(k.arg.position[0]), last) + 1  # bounded first: an addition could wrap
        k.store(k.arg.position[0], position)
        k.store(k.arg.length[0], k.min(position, last) + 1)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        position = min(int(arguments["position"][0]) + 1, self.max_len)
        length = min(position + 1, self.max_len)
        return {"position": np.array([position], np.uint32), "length": np.array([length], np.uint32)}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        return {"position": 0.0, "length": 0.0}

    def work(self) -> Work:
        return Work(flops=2, bytes=3 * U32.bytes)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for max_len in (131072, 100, 1):
            yield cls(max_len=max_len)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"position": rng.integers(self.max_len, size=1, dtype=np.uint32), "length": np.zeros(1, np.uint32)}
