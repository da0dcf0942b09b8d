"""What the calls of one executor share (device, kernels, weights, memory), and how a call launches: at once, or recorded for a
graph. What is launched is the business of those that are built on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from executor.base.arguments import checked
from executor.base.errors import LaunchError
from executor.choice.choice import GpuProfile
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.layers.calls import LaunchBatch
from executor.layers.capture import Capture
from executor.layers.graph.binding import SharedForms
from executor.layers.operands import WeightLike, host_output, host_values, vector, weight
from executor.layers.sequence import LayerSequence
from executor.memory.buffers import GpuBuffer
from executor.memory.weights import LoadedWeight, Weights
from executor.memory.workspace import Workspace
from ptxgen.formats.format import Format
from ptxgen.types import F32, DType


class Session:
    """sequence: what layers run on, None before there is a KV cache."""

    profile: GpuProfile = checked("profile", GpuProfile, "Which kernels are used. It may be set anew at any time.")

    def __init__(self, launcher: Launcher, modules: Modules, profile: GpuProfile) -> None:
        self.device = launcher.device
        self.launcher = launcher
        self.modules = modules
        self.profile = profile
        self.workspace = Workspace(self.device)
        self.weights = Weights()
        self.sequence: LayerSequence | None = None
        self.recording: Capture | None = None
        """The capture under way."""
        self._shared = SharedForms()

    def vector(self, value: Any, shape: tuple[int, ...] | None, name: str) -> GpuBuffer:
        """A caller's f32 vector; see operands.vector."""
        return vector(self.device, value, shape, name)

    def weight(
        self, value: WeightLike, *, n: int | None = None, k: int | None = None, format: Format | None = None
    ) -> LoadedWeight:
        """A caller's matrix of n rows of k values; see operands.weight."""
        return weight(self.device, self.weights, value, n=n, k=k, format=format)

    @contextmanager
    def launches(self, layer: int | None = None) -> Iterator[LaunchBatch]:
        """What one call launches: checked in the block as it is named, launched when the block ends, or recorded by the capture
        under way. If anything is refused, nothing has been launched."""
        self.device.owner.check("launching")
        shared = self._shared if self.recording is None else self.recording.shared
        batch = LaunchBatch(self.launcher, self.workspace, layer, fused=self.modules.fused, shared=shared)
        try:
            yield batch
            batch.keep_shared()
            batch.start()
        except BaseException:
            shared.forget()  # some count as made and may not be
            if self.recording is None:  # then some may have run half
                self.workspace.settle()
            raise

    @contextmanager
    def result(self, *shape: int, dtype: DType = F32, out: Any = None) -> Iterator[GpuBuffer]:
        """What the block fills: the caller's `out`, checked as by operands.vector, or a new buffer, freed if that fails."""
        if out is not None:
            yield vector(self.device, out, shape, "out", dtype)
            return
        buffer = GpuBuffer.empty(self.device, dtype, shape, "result")
        try:
            yield buffer
        except BaseException:
            if buffer.alive:
                buffer.free()
            raise

    @contextmanager
    def round_trip(
        self, input: ArrayLike, shape: tuple[int, ...], output: NDArray[np.float32] | None, output_shape: tuple[int, ...]
    ) -> Iterator[tuple[LaunchBatch, GpuBuffer, GpuBuffer, NDArray[np.float32]]]:
        """For arrays of the host: what the block launches, input and output of it on the device, and the array that the output
        is copied to when the block has ended: `output` if there is one."""
        self.require_no_capture("host arrays are copied to the device and back")
        values, result = host_values(input, shape, "input"), host_output(output, output_shape)
        x, y = self.workspace.buffer("host input", shape), self.workspace.buffer("host output", output_shape)
        x.upload(values)
        with self.launches() as launch:
            yield launch, x, y, result
        self.device.download(y.pointer, result)

    def require_no_capture(self, action: str) -> None:
        """LaunchError in a capture, which names the action that a graph cannot hold."""
        if self.recording is not None:
            raise LaunchError(f"{action}, which cannot be captured; do this outside the capture")

    @contextmanager
    def capture(self) -> Iterator[Capture]:
        """Record what is launched in the block instead of launching it, by the executor's methods or by `launcher`; afterwards
        `replay` launches it all at once. What cannot be recorded is refused in the block: copies between host and device,
        fills, models. Raises LaunchError for a capture within one."""
        if self.recording is not None:
            raise LaunchError("a capture is already in progress; it must end before the next one begins")
        if self.sequence is not None:
            _ = self.sequence.rope_table  # of a cache that has grown: in a capture it could not be copied to the device
        graph = self.recording = Capture(
            self.launcher, self.workspace, lambda: (self.profile, self.weights.generation, self.sequence)
        )
        try:
            with self.launcher.recording() as plans:
                yield graph
        finally:
            self.recording = None
        graph.finish(plans)
