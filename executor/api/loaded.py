"""A device with what is loaded on it (kernels, weights, buffers), and how operations run there: at once, or recorded for a
graph. What the operations are is the business of the classes built on this one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Self

from numpy.typing import ArrayLike

from executor.base.arguments import array as host_array
from executor.base.arguments import instance, whole
from executor.base.errors import LaunchError
from executor.choice.choice import GpuProfile
from executor.device import open_device
from executor.gguf.gguf_file import GgufFile
from executor.launch.bundle import Bundle
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.layers.calls import Batch
from executor.layers.capture import Capture
from executor.layers.digits import SharedDigits
from executor.measure.debug import watch
from executor.memory.buffers import GpuBuffer
from executor.memory.interop import foreign_stream
from executor.memory.single_weight import HostData, host_weight
from executor.memory.weights import Progress, TensorFile, Weight, Weights, load_weights
from executor.memory.workspace import Workspace
from ptxgen.formats.format import Format
from ptxgen.types import F32, DType


class Loaded:
    """One device, its kernels and its weights. See CudaExecutor."""

    def __init__(
        self,
        device: str = "auto",
        *,
        bundle: str | Path | None = None,
        sanitize: bool = False,
        profile: GpuProfile | None = None,
    ) -> None:
        if profile is not None:
            instance("profile", profile, GpuProfile)
        opened = None if bundle is None else Bundle.open(bundle)
        self.device = open_device(device, sanitize=sanitize)
        try:
            self.modules = Modules(self.device, bundle=opened)
            if profile is None:
                profile = GpuProfile.for_modules(self.modules)
        except BaseException:
            self.device.close()
            raise
        self.profile = profile
        self.launcher = Launcher(self.device, self.modules)
        watch(self.launcher)
        self.workspace = Workspace(self.device)
        self.weights = Weights()
        self._shared = SharedDigits(self.workspace)
        self._capture: Capture | None = None

    @property
    def profile(self) -> GpuProfile:
        """Which kernels are used. It may be set anew at any time."""
        return self._profile

    @profile.setter
    def profile(self, profile: GpuProfile) -> None:
        self._profile = instance("profile", profile, GpuProfile)

    def buffer(self, array: ArrayLike, dtype: DType | None = None, name: str = "") -> GpuBuffer:
        """A copy of a host array on the device; see GpuBuffer.from_numpy."""
        return GpuBuffer.from_numpy(self.device, host_array("the array", array), dtype, name)

    def zeros(self, *shape: int, dtype: DType = F32, name: str = "") -> GpuBuffer:
        """A new buffer of zeros."""
        return GpuBuffer.zeros(self.device, dtype, shape, name)

    def on_stream(self, stream: int) -> AbstractContextManager[None]:
        """In the block, work here comes after what the caller's stream has started, and before what it starts after the block;
        see executor.interop.foreign_stream."""
        return foreign_stream(self.device, whole("stream", stream, 0))

    def load_weights(
        self, file: str | Path | TensorFile, names: list[str] | None = None, progress: Progress | None = None
    ) -> Weights:
        """Put tensors of a GGUF file (default: all) into one pool on the device; see executor.weights.load_weights. Returns all
        weights there are now."""
        opened = file if isinstance(file, TensorFile) else GgufFile.open(file)
        self.weights.take(load_weights(self.device, opened, list(opened.tensors) if names is None else names, progress))
        return self.weights

    def load_weight(self, name: str, data: HostData, type: str | int | Format, shape: tuple[int, ...]) -> Weight:
        """Put one tensor on the device, in the place of any of this name; see executor.single_weight.host_weight."""
        loaded = host_weight(self.device, name, data, type, shape)
        self.weights.put({name: loaded}, [loaded.buffer])
        return loaded

    def get_quantized_weight_ptr(self, name: str) -> int:
        """The address of a weight, from the pool or loaded alone. ModelError with near names if there is none."""
        return self.weights[name].buffer.pointer

    @contextmanager
    def capture(self) -> Iterator[Capture]:
        """Record what is launched in the block instead of launching it, by these methods or by `launcher`; afterwards `replay`
        launches it all at once. What cannot be recorded is refused in the block: copies between host and device, fills, models.
        Raises LaunchError for a capture within one."""
        if self._capture is not None:
            raise LaunchError("a capture is under way already; it must end before the next one begins")
        self._before_capture()
        graph = self._capture = Capture(self.launcher, self.workspace, self._capture_state)
        try:
            with self.launcher.recording() as plans:
                yield graph
        finally:
            self._capture = None
        graph.finish(plans)

    def take_over(self) -> None:
        """From now on the executor and its models belong to the calling thread, and to no other: see Gate. DeviceError while
        the emulator runs a kernel for the thread that they belonged to."""
        self.device.gate.take_over()

    def close(self) -> None:
        """Free all that is on the device, models included. A second time does nothing."""
        self.device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _together(self, layer: int | None = None) -> Iterator[Batch]:
        """What one call launches: checked in the block as it is named, launched when the block ends, or recorded by the capture
        under way. If anything is refused, nothing has been launched."""
        self.device.gate.check("launching")
        digits = self._shared if self._capture is None else self._capture.digits
        batch = Batch(self.launcher, digits, layer, fused=self.modules.fused)
        try:
            yield batch
            batch.start()
        except BaseException:
            digits.forget()  # some count as made and may not be
            raise

    def _at_once(self, doing: str) -> None:
        """LaunchError in a capture, saying what is done that a graph cannot hold."""
        if self._capture is not None:
            raise LaunchError(f"{doing}, which a graph cannot hold; do this outside the capture")

    def _before_capture(self) -> None:
        """Put on the device what a recorded launch may need: in a capture nothing can be copied there."""

    def _capture_state(self) -> object:
        """What the choice of kernels depends on."""
        return self.profile, self.weights.generation
