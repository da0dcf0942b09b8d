"""Attention of one new token whose result is quantised in the same launch, for an output projection on int8 digits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.value import Value
from ptxgen.kernels.attention.incremental_attention import IncrementalAttention
from ptxgen.kernels.attention.tiles import Softmax
from ptxgen.kernels.quantize import activation_digits
from ptxgen.kernels.quantize.digit_bounds import digit_bounds
from ptxgen.kernels.quantize.quantize import Quantize, write_digits
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.types import F32


@register(indirect=(True,))
@dataclass(frozen=True)
class IncrementalAttentionDigits(IncrementalAttention):
    """incremental_attention_indirect and the int8 digits of its out in one launch, bit for bit.

    out, q: f32[heads, head_dim]; k_cache, v_cache: f32[kv_heads, max_len, head_dim]; length: u32[1], 1..max_len: any other
    writes nothing. With size = heads * head_dim, digits: s8[1, digits, size], scales: f32[1, size / 32], sums: s32[1, size /
    32]: what q8_quantize (digits=1), q16_quantize (2) or q24_quantize (3) make of out as one row.
    """

    digits: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "digits", high=max(activation_digits.LARGEST))

    @property
    def name(self) -> str:
        return f"incremental_attention_digits{'_indirect' if self.indirect else ''}"

    @property
    def size(self) -> int:
        """Values of `out`."""
        return self.heads * self.head_dim

    def signature(self) -> Signature:
        out, *inputs = super().signature().items()
        return dict([out, *activation_digits.arrays(1, self.digits, self.size, "out").items(), *inputs])

    def write(self, k: KernelBuilder, whole: Softmax, allowed: Value) -> None:
        value = k.f32(0.0)
        for d, total in self.tiles.added(k, whole.weighted, allowed):  # once: a block has a thread for each d
            value @= total / whole.total
            k.store(k.arg.out[k.ctaid.x, d], value)
        live = allowed & (k.tid.x < self.head_dim)
        place = k.ctaid.x * self.head_dim + k.tid.x
        write_digits(k, self.digits, 0, place, [value], live)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        if not self.given_length(arguments):
            return {name: arguments[name] for name in ("out", *activation_digits.ActivationDigits._fields)}
        out = super().reference(**arguments)["out"]
        return {"out": out, **activation_digits.quantize(out.reshape(1, self.size), self.digits)._asdict()}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """That of incremental_attention, and what it lets the digits be."""
        if not self.given_length(arguments):
            return dict.fromkeys(("out", *activation_digits.ActivationDigits._fields), 0.0)
        out, bound = super().reference(**arguments)["out"], np.asarray(super().tolerance(**arguments)["out"])
        return {"out": bound, **digit_bounds(out.reshape(1, self.size), bound.reshape(1, self.size), self.digits)}

    def work(self, length: int | None = None) -> Work:
        attention, quantize = super().work(length), Quantize(self.digits, self.size).work()
        return Work(flops=attention.flops + quantize.flops, bytes=attention.bytes + quantize.bytes - F32.bytes * self.size)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(**fixed, heads=9, kv_heads=3, head_dim=64, max_len=100, digits=2)
        yield cls(**fixed, heads=8, kv_heads=2, head_dim=128, max_len=33, digits=1)
        yield cls(**fixed, heads=2, kv_heads=1, head_dim=256, max_len=40, digits=3)
        yield cls(**fixed, heads=2, kv_heads=2, head_dim=96, max_len=300, digits=3)
        yield cls(**fixed, heads=3, kv_heads=1, head_dim=32, max_len=1, digits=2)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {**super().inputs(rng), **activation_digits.unwritten(1, self.digits, self.size)}
