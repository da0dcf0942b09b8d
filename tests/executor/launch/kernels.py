"""Tiny kernels for tests of the executor: right, simple, and with every kind of argument."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from executor.device import Device
from executor.launch.launch import Launcher, Plan
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.arguments import Scalar, Signature, read, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.kernels.accuracy import UNIT
from ptxgen.target import HOPPER
from ptxgen.types import F32, U32


@dataclass(frozen=True)
class Scale(KernelType):
    """y = x * factor + offset, f32[n]; offset is a u32 of at most 1000."""

    family: ClassVar[str] = "test"
    name = "test_scale"
    n: int

    def signature(self) -> Signature:
        return {"y": write(F32, self.n), "x": read(F32, self.n), "factor": Scalar(F32), "offset": Scalar(U32, high=1000)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.n // 64), block=64)

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * 64 + k.tid.x
        with k.when(i < self.n):
            k.store(k.arg.y[i], k.load(k.arg.x[i]) * k.arg.factor + k.f32(k.arg.offset))

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {"y": arguments["x"].astype(np.float64) * arguments["factor"] + arguments["offset"]}

    def work(self) -> Work:
        return Work(flops=2 * self.n, bytes=8 * self.n)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(n=100)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        x = rng.normal(size=self.n).astype(np.float32)
        return {"y": np.zeros(self.n, np.float32), "x": x, "factor": 2.0, "offset": 3}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        return {"y": (np.abs(arguments["x"] * arguments["factor"]) + np.abs(self.reference(**arguments)["y"])) * UNIT}


@dataclass(frozen=True)
class Alone(Scale):
    """Scale, for one GPU alone."""

    name = "test_alone"
    only_on = HOPPER


@dataclass(frozen=True)
class Accumulate(Scale):
    """total += x, f32[n]."""

    name = "test_accumulate"

    def signature(self) -> Signature:
        return {"total": update(F32, self.n), "x": read(F32, self.n)}

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * 64 + k.tid.x
        with k.when(i < self.n):
            k.store(k.arg.total[i], k.load(k.arg.total[i]) + k.load(k.arg.x[i]))

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {"total": arguments["total"].astype(np.float64) + arguments["x"]}


@dataclass(frozen=True)
class Turned(Scale):
    """y = x backwards, f32[n], through shared memory that the launch asks for. One block; n is a multiple of its threads."""

    name = "test_turned"

    def signature(self) -> Signature:
        return {"y": write(F32, self.n), "x": read(F32, self.n)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=1, block=256, dynamic_shared=4 * self.n)

    def emit(self, k: KernelBuilder) -> None:
        static = k.shared(F32, 1)
        with k.when(k.tid.x == 0):
            k.store(static[0], k.load(k.arg.x[0]))  # what the builder counts lies beside it
        staged = k.dynamic_shared(F32)
        for i in k.strided(k.tid.x, self.n, step=256):
            k.store(staged[i], k.load(k.arg.x[i]))
        k.barrier()
        for i in k.strided(k.tid.x, self.n, step=256):
            k.store(k.arg.y[i], k.load(staged[self.n - 1 - i]))

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {"y": arguments["x"][::-1]}


@dataclass(frozen=True)
class TurnedTogether(Scale):
    """y = x backwards, f32[n], through `staged`, which other blocks wrote. n is a multiple of 64."""

    name = "test_turned_together"

    def signature(self) -> Signature:
        return {
            "y": write(F32, self.n),
            "x": read(F32, self.n),
            "staged": write(F32, self.n),
            "words": update(U32, 2, zeros=True),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.n // 64, block=64, cooperative=True)

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * 64 + k.tid.x
        k.store(k.arg.staged[i], k.load(k.arg.x[i]))
        k.grid_barrier(k.arg.words, 2)
        k.store(k.arg.y[i], k.load(k.arg.staged[self.n - 1 - i]))
        k.grid_barrier(k.arg.words, 2)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(n=192)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        y, x, staged = (rng.normal(size=self.n).astype(np.float32) for _ in range(3))
        return {"y": y, "x": x, "staged": staged, "words": np.zeros(2, np.uint32)}

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        return {"y": arguments["x"][::-1], "staged": arguments["x"], "words": np.zeros(2, np.uint32)}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        return {"y": 0, "staged": 0, "words": 0}


def together_plan(device: Device, blocks: int) -> Plan:
    """A launch of TurnedTogether on so many blocks, on memory of its own."""
    n = 64 * blocks
    y, x, staged = (GpuBuffer.zeros(device, F32, (n,), name) for name in ("y", "x", "staged"))
    launcher, words = Launcher(device, Modules(device, limit_bytes=0)), GpuBuffer.zeros(device, U32, (2,), "words")
    return launcher.prepare(TurnedTogether(n=n), y=y, x=x, staged=staged, words=words)


@dataclass(frozen=True)
class ReadsBeyond(Scale):
    """Wrong on purpose: every thread reads the element after its own, so the last one reads beyond x."""

    name = "test_reads_beyond"

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * 64 + k.tid.x
        with k.when(i < self.n):
            k.store(k.arg.y[i], k.load(k.arg.x[i + 1]) * k.arg.factor + k.f32(k.arg.offset))
