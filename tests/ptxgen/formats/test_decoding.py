"""Decoding on the emulator gives the bits of gguf-py's dequantize: for any codes and finite scales, for one byte column a lane
(through embedding_lookup) and for wider readers whose group is a register."""

from __future__ import annotations

import re
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
from ptxgen.formats import ALL, Format, RepackedFormat
from ptxgen.formats.format import LaneAddress
from ptxgen.kernels.gemv.iteration import advance
from ptxgen.kernels.token.embedding_lookup import EmbeddingLookup
from ptxgen.toolchain.module import emit
from ptxgen.types import F32, U8
from tests.ptxgen.kernels.running import emulate, inputs

EXTREME_SCALES = [0.0, -0.0, 2.0**-24, -(2.0**-24), 1023 * 2.0**-24, 2.0**-14, 1.0, -1.0, 65504.0, -65504.0]

scales = st.sampled_from(EXTREME_SCALES) | st.floats(-65504, 65504, width=16)


@st.composite
def blocks_of(draw: st.DrawFn, format: Format, count: int) -> NDArray[np.uint8]:
    """Any bytes with any finite scales, u8[count, block_bytes]; packed, where no file has the format."""
    if isinstance(format, RepackedFormat):
        native = draw(blocks_of(format.native, count * (format.native_bytes // format.native.block_bytes)))
        return format.pack(native.reshape(count, -1))
    size = count * format.block_bytes
    blocks = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8).reshape(count, -1).copy()
    for scale in format.scales:
        drawn = draw(st.lists(scales, min_size=count, max_size=count))
        format.write_scale(blocks, scale, np.array(drawn, "<f2"))
    return blocks


def assert_same_bits(got: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    differ = np.flatnonzero(got.view(np.uint32) != np.ascontiguousarray(wanted).reshape(-1).view(np.uint32))
    assert not differ.size, f"{differ.size} differ, first {differ[0]}: {got[differ[0]]!r}, {wanted.reshape(-1)[differ[0]]!r}"


@pytest.mark.parametrize("format", ALL.values(), ids=str)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_decoding_gives_the_bits_of_gguf(format: Format, data: st.DataObject) -> None:
    blocks = 3 if format.block > 1 else 37
    kernel = EmbeddingLookup(format=format, rows=1, k=blocks * format.block)
    row = data.draw(blocks_of(format, blocks))
    with np.errstate(over="ignore"):
        wanted = format.dequantize(row.reshape(1, -1))[0]
    finite = np.isfinite(wanted)  # a NaN need not keep its payload
    arguments = {"y": np.zeros(kernel.k, np.float32), "table": row.reshape(1, -1), "token": np.uint32(0)}
    results, findings = emulate(kernel, arguments)
    assert not findings
    assert_same_bits(results["y"][finite], wanted[finite])


@dataclass(frozen=True)
class WideDecode(KernelType):
    """y = the values of w, one block a CUDA block, `width` columns a thread, the group a register."""

    format: Format
    width: int
    blocks: int = 3

    name = "wide_decode"
    family = "test"

    def signature(self) -> Signature:
        return {
            "y": write(F32, self.blocks * self.format.block),
            "w": read(U8, self.blocks, self.format.block_bytes),
        }

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return self.format.columns // self.width

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.blocks, block=self.threads * self.format.groups)

    def emit(self, k: KernelBuilder) -> None:
        format = self.format
        group, column = k.tid.x // self.threads, k.tid.x % self.threads * self.width
        block = k.arg.w.at(k.ctaid.x, 0)
        decode = format.reader(k, LaneAddress(block, advance(block, column, 1), column), self.width)
        y = advance(advance(k.arg.y, k.ctaid.x, format.block), group, format.columns * format.depth)
        y = advance(y, column, 1)
        for offset, weight in decode(group):
            k.store(y[offset], weight)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[np.float32]]:
        return {"y": self.format.dequantize(arguments["w"]).reshape(-1)}

    def tolerance(self, **arguments: Any) -> Mapping[str, float]:
        return {"y": 0.0}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        y = np.zeros(self.blocks * self.format.block, np.float32)
        return {"y": y, "w": self.format.random_blocks(rng, self.blocks, self.format.block)}

    def work(self) -> Work:
        return Work(0, 0)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        for format in ALL.values():
            for width in format.widths:
                if width <= format.columns:
                    yield cls(format, width)


@pytest.mark.parametrize("kernel", list(WideDecode.cases()), ids=str)
def test_wider_readers_give_the_bits_of_gguf(kernel: WideDecode) -> None:
    arguments = inputs(kernel)
    results, findings = emulate(kernel, arguments)
    assert not findings, "\n".join(map(str, findings))
    assert_same_bits(results["y"], kernel.reference(**arguments)["y"])


@pytest.mark.parametrize("kernel", list(WideDecode.cases()), ids=str)
def test_readers_never_ask_for_more_alignment_than_blocks_have(kernel: WideDecode) -> None:
    loads = re.findall(r"ld\.global\.(?:v(\d)\.)?[a-z](\d+) ", emit(kernel).text)
    assert loads
    assert max(int(count or 1) * int(bits) // 8 for count, bits in loads) <= kernel.format.align
