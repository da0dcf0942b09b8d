"""The parts of a sum of squares have the same bits whoever makes them, and those who add the parts do so in one order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.kernels.norm.squares import SumOfSquares, exact_squares, group_squares, squares_bound
from ptxgen.types import F32
from tests.ptxgen.kernels.checking import run


@dataclass(frozen=True)
class Squares(KernelType):
    """squares: f32[128 / 32] of x: f32[128], by lanes of `width` values; total: f32[64], what each thread adds up of parts:
    f32[groups]."""

    width: int
    groups: int = 1
    family: ClassVar[str] = "test"
    name = "squares"

    def signature(self) -> Signature:
        return {"squares": write(F32, 4), "total": write(F32, 64), "x": read(F32, 128), "parts": read(F32, self.groups)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=1, block=128 // self.width)

    def emit(self, k: KernelBuilder) -> None:
        place = k.tid.x * self.width
        values = k.load_vector(k.arg.x[place], 4) if self.width == 4 else [k.load(k.arg.x[place])]
        squares = group_squares(k, values)
        with k.when((place & 31) == 0):
            k.store(k.arg.squares[place // 32], squares)
        total = SumOfSquares(k, k.arg.parts, self.groups).total()
        with k.when(k.tid.x < 64):
            k.store(k.arg.total[k.tid.x], total)

    def results(self, x: NDArray[Any], parts: NDArray[Any]) -> dict[str, NDArray[Any]]:
        nothing = {"squares": np.zeros(4, np.float32), "total": np.zeros(64, np.float32)}
        return run(self, {**nothing, "x": x, "parts": parts})

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {"squares": exact_squares(arguments["x"].astype("f8"))}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        x = arguments["x"].astype("f8")
        return {"squares": squares_bound(x, np.zeros_like(x))}

    def work(self) -> Work:
        return Work(0, 1)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {}

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(1)


def some(rng: np.random.Generator, size: int) -> NDArray[np.float32]:
    return (rng.normal(size=size) * 10.0 ** rng.uniform(-3, 3, size)).astype(np.float32)


def test_a_lane_of_one_value_and_a_lane_of_four_make_the_same_bits() -> None:
    x, parts = some(np.random.default_rng(0), 128), np.ones(1, np.float32)
    one, four = (Squares(width).results(x, parts)["squares"] for width in (1, 4))
    assert one.tobytes() == four.tobytes()
    off = np.abs(one - exact_squares(x.astype("f8")))
    assert (off <= squares_bound(x.astype("f8"), np.zeros(128))).all()
    assert off.any()  # the order shows


@pytest.mark.parametrize("groups", [1, 18, 32, 64, 65, 128])
def test_every_warp_adds_up_all_parts_in_one_order(groups: int) -> None:
    parts = some(np.random.default_rng(groups), groups) ** 2
    padded = np.zeros(-(-groups // 32) * 32, np.float32)
    padded[:groups] = parts
    lanes, *others = padded.reshape(-1, 32)
    for other in others:
        lanes = lanes + other
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    total = Squares(1, groups).results(np.ones(128, np.float32), parts)["total"]
    assert total.tobytes() == np.repeat(lanes, 64).tobytes()
