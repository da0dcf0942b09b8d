"""Packed 8-bit codes with their scales and minima are the weights of gguf-py, whatever the blocks hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.formats import ALL, Format
from ptxgen.formats.format import LaneAddress
from ptxgen.kernels.gemv.iteration import advance
from ptxgen.types import F32, S32, U8
from tests.ptxgen.formats.test_decoding import blocks_of
from tests.ptxgen.kernels.running import emulate

PACKED = [format for format in ALL.values() if format.packed_width]


@dataclass(frozen=True)
class PackedDecode(KernelType):
    """y = the values of w, one block a CUDA block, one fragment a thread."""

    format: Format
    blocks: int

    name = "packed_decode"
    family = "test"

    def signature(self) -> Signature:
        return {
            "y": write(F32, self.blocks * self.format.block),
            "w": read(U8, self.blocks, self.format.block_bytes),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.blocks, block=self.format.fragments)

    def emit(self, k: KernelBuilder) -> None:
        format = self.format
        per_group = format.columns // format.packed_width
        group, column = k.tid.x // per_group, k.tid.x % per_group * format.packed_width
        block = advance(k.arg.w.at(0, 0), k.ctaid.x, format.block_bytes)
        runs = format.unpack(k, format.load_packed(k, LaneAddress(block, advance(block, column, 1), column), group), group)
        y = advance(advance(k.arg.y, k.ctaid.x, format.block), group, format.columns * format.packed_depth)
        y = advance(y, column, 1)
        for run in runs:
            for i, word in enumerate(run.words):
                for byte in range(4):
                    code = word << (24 - 8 * byte)
                    number = k.f32(k.bits(code, S32) >> 24 if run.signed else code >> 24)
                    weight = number * run.scale
                    k.store(y[run.offset + 4 * i + byte], weight if run.minimum is None else weight - run.minimum)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[np.float32]]:
        return {"y": self.format.dequantize(arguments["w"]).reshape(-1)}

    def tolerance(self, **arguments: Any) -> Mapping[str, float]:
        return {"y": 0.0}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        raise NotImplementedError("the test draws them")

    def work(self) -> Work:
        return Work(0, 0)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        return iter(())


@pytest.mark.parametrize("format", PACKED, ids=str)
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_packed_codes_are_the_weights_of_gguf(format: Format, data: st.DataObject) -> None:
    kernel = PackedDecode(format, blocks=4 if format.block > 32 else 7)
    w = data.draw(blocks_of(format, kernel.blocks))
    with np.errstate(over="ignore"):
        wanted = kernel.reference(w=w)["y"]
    results, findings = emulate(kernel, {"y": np.zeros_like(wanted), "w": w})
    assert not findings, "\n".join(map(str, findings))
    finite = np.isfinite(wanted)
    assert np.array_equal(results["y"][finite], wanted[finite])


@pytest.mark.parametrize("format", [format for format in PACKED if format.align == 2], ids=str)
def test_a_block_is_decoded_and_nothing_beside_the_array_is_read_wherever_it_starts(format: Format) -> None:
    kernel = PackedDecode(format, blocks=8)  # on each of the even addresses modulo 16
    starts = {number * format.block_bytes % 16 for number in range(kernel.blocks)}
    assert starts == set(range(0, 16, 2))
    w = format.random_blocks(np.random.default_rng(6), kernel.blocks, format.block)
    wanted = kernel.reference(w=w)["y"]
    results, findings = emulate(kernel, {"y": np.zeros_like(wanted), "w": w})
    assert not findings, "\n".join(map(str, findings))
    assert np.array_equal(results["y"], wanted)
