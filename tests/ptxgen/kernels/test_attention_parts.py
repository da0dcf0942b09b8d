"""Attention is composed of parts: a new output form is a class of its own, and every kernel of attention can write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.attention.f16_split import F16SplitOutput
from ptxgen.kernels.attention.output import HeadValues, Output, OutShape, Own, Runs, Store, StoreHead, ready
from ptxgen.kernels.attention.paged_attention_reduce import PagedAttentionReduce
from ptxgen.kernels.attention.paged_last_block import ONE_PART, PagedAttentionLastBlock
from ptxgen.kernels.attention.rope_source import RopeFused
from ptxgen.kernels.attention.token_split import LastBlock, OneBlock, Warps
from ptxgen.types import F32
from tests.ptxgen.kernels.checking import check


@dataclass(frozen=True)
class Scaled(Output):
    """`out`, and `scaled`: f32[tokens, size], `factor` times that."""

    suffix = "_scaled"
    factor: float

    def arrays(self, shape: OutShape) -> Signature:
        return {"scaled": write(F32, shape.tokens, shape.size)}

    def unwritten(self, shape: OutShape) -> dict[str, NDArray[Any]]:
        return {"scaled": np.full((shape.tokens, shape.size), np.nan, np.float32)}

    def of(self, shape: OutShape, out: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return {"scaled": self.factor * shape.rows(out)}

    def bounds(self, shape: OutShape, out: NDArray[Any], bound: Any) -> dict[str, NDArray[Any]]:
        return {"scaled": 2 * self.factor * shape.rows(bound)}

    def write_head(
        self, k: KernelBuilder, shape: OutShape, token: Value | int, found: HeadValues, store: StoreHead, own: Own
    ) -> None:
        place, _ = own()
        for d, result in found:
            value = result()
            store(d, ready(value))
            k.store(k.arg.scaled[token, place], value * self.factor)

    def write_runs(
        self, k: KernelBuilder, shape: OutShape, token: Value | int, first: Value, values: int, runs: Runs, store: Store
    ) -> None:
        for place, results, live in runs:
            with k.when(live):
                store(place, results)
                k.store(k.arg.scaled[token, first * shape.head_dim + place], [value * self.factor for value in results])


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel",
    [
        ContiguousAttention(False, 2, 1, 32, 40, output=Scaled(0.5)),
        ContiguousAttention(True, 2, 1, 32, 40, output=Scaled(0.5), split=Warps(2)),
        ContiguousAttention(True, 2, 1, 32, 70, output=Scaled(0.5), split=LastBlock(2, 32, 32)),
        ContiguousAttention(True, 2, 1, 32, 70, output=Scaled(0.5), split=LastBlock(2, 32, 32), source=RopeFused(True, True)),
        PagedAttentionLastBlock(1, 1, 1, 32, 32, 1, 1, 32, **ONE_PART, output=Scaled(0.5)),
        PagedAttentionReduce(2, 1, 32, 64, 2, 32, output=Scaled(0.5)),
    ],
    ids=lambda kernel: kernel.name,
)
def test_every_kernel_writes_a_form_that_it_does_not_know(kernel: KernelType) -> None:
    assert "_scaled" in kernel.name
    assert kernel.parameters()["factor"] == 0.5
    results = check(kernel, kernel.inputs(np.random.default_rng(3)))
    assert np.isfinite(results["scaled"]).all()


@pytest.mark.parametrize("parts", [{"source": RopeFused(False)}, {"output": F16SplitOutput(1, 4)}], ids=str)
def test_parts_that_do_not_go_together_are_refused_by_name(parts: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"^there is no (rope_)?incremental_attention(_halves)?_indirect of "):
        ContiguousAttention(True, 1, 1, 256, 1, split=OneBlock(), **parts)
