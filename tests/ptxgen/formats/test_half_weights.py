"""Integers in f16 with their scales and minima are the weights of gguf-py, whatever the blocks hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.formats import ALL, Format, RepackedFormat
from ptxgen.formats.half_weights import STEPS, WINDOW, Pair
from ptxgen.kernels.gemv.iteration import advance
from ptxgen.types import F32, U8, U32
from tests.ptxgen.kernels.running import emulate

QUAD = 4
DECODED = [format for format in ALL.values() if format.half_run]
MOST_EXACT = 2048
"""The largest integer up to which f16 holds all."""


@dataclass(frozen=True)
class HalfDecode(KernelType):
    """The integers of a row, by step, lane, register and half; their scales, the minima, and the scale of these. A window a
    CUDA block, a lane a thread."""

    format: Format
    k: int

    name = "half_decode"
    family = "test"

    @property
    def windows(self) -> int:
        return -(-self.k // WINDOW)

    def signature(self) -> Signature:
        return {
            "high": write(U32, self.windows, STEPS, QUAD, 2),
            "low": write(U32, self.windows, STEPS, QUAD, 2),
            "scales": write(F32, self.windows, QUAD, STEPS // 2),
            "minima": write(U32, self.windows, QUAD, 2),
            "of_minima": write(F32, self.windows, QUAD),
            "w": read(U8, self.format.row_bytes(self.k)),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.windows, block=QUAD)

    def emit(self, k: KernelBuilder) -> None:
        format, t, window = self.format, k.tid.x, k.ctaid.x
        lane = format.half_lane(k, t)
        per_window = max(1, WINDOW // format.block)
        row = advance(k.arg.w, window, per_window * format.block_bytes)
        last = self.k // format.block - 1 - window * per_window
        weights = format.unpack_halves(k, format.load_halves(k, row, lane, last), lane)
        assert sorted(weights.order) == list(range(STEPS))
        for number in weights.order:
            step = weights.step(number)
            assert (step.low is not None) == format.half_low
            _store(k, k.arg.high.at(window, number, t, 0), step.high)
            _store(k, k.arg.low.at(window, number, t, 0), step.low or _zeros(k))
        of_steps = weights.scales if len(weights.scales) > 1 else [weights.scales[0]] * (STEPS // 2)
        for number, scale in enumerate(of_steps):
            k.store(k.arg.scales[window, t, number], scale)
        minima = weights.minima
        _store(k, k.arg.minima.at(window, t, 0), minima.halves if minima else _zeros(k))
        k.store(k.arg.of_minima[window, t], minima.scale if minima else 0.0)

    def decode(self, w: NDArray[np.uint8]) -> NDArray[np.float64]:
        """The weights of a row, f64[k], just as its integers, scales and minima say."""
        outputs = {
            name: np.zeros(array.shape, np.float32 if array.dtype == F32 else np.uint32)
            for name, array in self.signature().items()
            if isinstance(array, Array) and name != "w"
        }
        results, findings = emulate(self, {**outputs, "w": w})
        assert not findings, "\n".join(map(str, findings))
        return self._weights(results)

    def _weights(self, results: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        s, t, c, u = np.meshgrid(range(STEPS), range(QUAD), range(2), range(2), indexing="ij")
        places = (64 * t + 4 * s if self.format.half_run == 64 else 16 * s + 4 * t) + c + 2 * u
        integers = _numbers(results["high"]) + _numbers(results["low"])  # window, step, lane, register, half
        if not results["low"].any():
            assert np.abs(integers).max() <= MOST_EXACT
        row = np.empty((self.windows, WINDOW))
        scales = results["scales"].astype("f8")[:, 0].repeat(2, axis=1)
        row[:, places] = integers * scales[:, :, None, None, None]
        minima, sums = _numbers(results["minima"]), np.empty((self.windows, STEPS))
        t, c, u = np.meshgrid(range(QUAD), range(2), range(2), indexing="ij")
        sums[:, 4 * t + c + 2 * u] = minima * results["of_minima"].astype("f8")[:, :, None, None]
        decoded: NDArray[np.float64] = (row - sums.repeat(16, axis=1)).reshape(-1)[: self.k]
        return decoded

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[np.float32]]:
        raise NotImplementedError("the test puts the results together")

    def tolerance(self, **arguments: Any) -> Mapping[str, float]:
        raise NotImplementedError("weights are exact")

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        raise NotImplementedError("the test draws them")

    def work(self) -> Work:
        return Work(0, 0)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        return iter(())


def _store(k: KernelBuilder, place: Any, pair: Pair) -> None:
    for number, value in enumerate(pair):
        k.store(place[number], k.bits(value, U32))


def _zeros(k: KernelBuilder) -> tuple[Value, Value]:
    return k.u32(0), k.u32(0)


def _numbers(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    return words.view(np.float16).astype("f8").reshape(*words.shape, 2)


def any_blocks(format: Format, k: int) -> NDArray[np.uint8]:
    """Blocks of any bytes with finite scales of any size; the last two have the smallest and the largest codes."""
    if isinstance(format, RepackedFormat):
        return format.pack(any_blocks(format.native, k))
    rng = np.random.default_rng(6)
    blocks = rng.integers(0, 256, (format.row_bytes(k) // format.block_bytes, format.block_bytes), dtype=np.uint8)
    blocks[-2], blocks[-1] = 0, 255
    for scale in format.scales:
        sizes = rng.choice([0.0, 6e-8, 1.0, 0.3, 65504.0], len(blocks)) * rng.choice([-1.0, 1.0], len(blocks))
        format.write_scale(blocks, scale, sizes.astype("<f2"))
    return blocks.reshape(-1)


@pytest.mark.parametrize("format", DECODED, ids=str)
def test_integers_scales_and_minima_are_the_weights_of_gguf(format: Format) -> None:
    kernel = HalfDecode(format, k=8 * WINDOW if format.block == WINDOW else 4 * WINDOW + 3 * format.block)
    w = any_blocks(format, kernel.k)  # the last block is followed by what must not be read
    with np.errstate(over="ignore"):  # of MXFP4's largest scale
        decoded, wanted = kernel.decode(w), format.dequantize(w.reshape(1, -1)).astype("f8")[0]
    minima = format.largest_minima(w.reshape(1, -1))[0]
    allowed = 2.0**-22 * (np.abs(wanted) + 2 * minima)  # gguf-py rounds three times
    assert np.all(np.abs(decoded - wanted) <= allowed)
