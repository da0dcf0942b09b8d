"""A GPU through the CUDA driver API (cuda.bindings.driver): one primary context, one non-blocking stream, checked calls."""

from __future__ import annotations

import logging
import re
import threading
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self

from numpy.typing import NDArray

from executor.device.allocations import Allocations
from executor.device.protocol import BytesCopied, Grid, LoadedKernel, Memory, checked_bytes
from executor.device.staging import Staging
from executor.errors import DeviceError
from executor.parameters import ParameterBlock
from ptxgen.assemble import UnsupportedTarget, assemble, toolchain
from ptxgen.target import FIRST_PTX, Target

STAGED_FROM = 1 << 20
"""Bytes from which an upload goes through pinned memory; below, the driver's own staging is as fast."""
JIT_LOG_BYTES = 16384

_current = threading.local()  # .device: whose context is current on this thread
_log = logging.getLogger(__name__)


@cache
def driver() -> Any:
    """cuda.bindings.driver, initialised. Raises DeviceError if there is no NVIDIA driver on this machine."""
    try:
        from cuda.bindings import driver as bindings
    except ImportError as error:
        raise DeviceError(f"cuda-bindings cannot be imported ({error}); install it with `pip install cuda-bindings`") from error
    try:
        (status,) = bindings.cuInit(0)
    except RuntimeError as error:  # what the bindings raise when libcuda.so.1 is not found
        raise DeviceError(f"no NVIDIA driver on this machine ({error})") from error
    if status != bindings.CUresult.CUDA_SUCCESS:
        raise DeviceError(f"the NVIDIA driver does not start: {_words(bindings, status)}")
    return bindings


def gpu_count() -> int:
    """How many GPUs the driver shows. Raises DeviceError without a driver."""
    return int(_checked(driver().cuDeviceGetCount(), "counting GPUs"))


class CudaDevice:
    """GPU number `ordinal`. See protocol.Device."""

    kind: Literal["cuda"] = "cuda"
    wants_lines = False

    def __init__(self, ordinal: int = 0) -> None:
        self.closed = True  # until it is open
        self._cuda = cuda = driver()
        count = gpu_count()
        if not 0 <= ordinal < count:
            raise DeviceError(f"there is no cuda:{ordinal}; the driver shows {_gpus(count)}")
        self.ordinal = ordinal
        self._gpu = _checked(cuda.cuDeviceGet(ordinal), f"opening GPU {ordinal}")
        model = _checked(cuda.cuDeviceGetName(256, self._gpu), "reading the GPU's name").split(b"\0")[0].decode()
        self.name = f"cuda:{ordinal} ({model})"
        attributes = cuda.CUdevice_attribute
        major = self._attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = self._attribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        self.multiprocessors = self._attribute(attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.gpu = Target(major * 10 + minor)
        """What machine code is written for; `target`, what text is emitted for, is the newest known GPU up to that."""
        self.target = _emission_target(self.name, self.gpu)
        self.driver_version = int(_checked(cuda.cuDriverGetVersion(), "reading the driver's version"))
        self.reason = ""
        self.frees = 0
        self._context = _checked(cuda.cuDevicePrimaryCtxRetain(self._gpu), f"making a context on {self.name}")
        self._allocations = Allocations(self.name)
        self._modules: list[Any] = []
        self._events: list[Any] = []
        self._staging: Staging | None = None
        self.closed = False
        self._enter("opening")
        flags = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        self._stream = _checked(cuda.cuStreamCreate(flags), f"making a stream on {self.name}")

    @property
    def build(self) -> str:
        return f"{self.gpu} {toolchain()} driver {self.driver_version}"

    @property
    def stream(self) -> Any:
        return self._stream

    def describe(self) -> dict[str, Any]:
        memory = self.memory()
        return {
            "name": self.name,
            "kind": self.kind,
            "gpu": str(self.gpu),
            "target": str(self.target),
            "multiprocessors": self.multiprocessors,
            "memory_bytes": memory.total,
            "cuda_driver": f"{self.driver_version // 1000}.{self.driver_version % 1000 // 10}",
            "assembler": toolchain(),
            "cuda_bindings": version("cuda-bindings"),
        }

    def memory(self) -> Memory:
        self._enter("reading memory")
        free, total = _checked(self._cuda.cuMemGetInfo(), f"reading the memory of {self.name}")
        return Memory(int(free), int(total), self._allocations.total)

    def alloc(self, nbytes: int, name: str = "") -> int:
        self._enter("allocating")
        if nbytes <= 0:
            raise DeviceError(f"{self.name}: cannot allocate {nbytes} bytes")
        status, pointer = self._cuda.cuMemAlloc(nbytes)
        if status == self._cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            memory = self.memory()
            what = f"{nbytes} bytes{f' ({name})' if name else ''}"
            raise DeviceError(f"{self.name}: no room for {what}; {memory.free} of {memory.total} are free")
        base = int(_checked((status, pointer), f"allocating {nbytes} bytes on {self.name}"))
        self._allocations.add(base, nbytes)
        return base

    def free(self, pointer: int) -> None:
        self._enter("freeing")
        self._allocations.remove(pointer)
        self.frees += 1
        _checked(self._cuda.cuMemFree(pointer), f"freeing memory on {self.name}")

    def adopt(self, array: NDArray[Any], name: str = "") -> int | None:
        return None

    def upload(self, pointer: int, array: NDArray[Any], progress: BytesCopied | None = None) -> None:
        self._enter("uploading")
        nbytes = checked_bytes(array)
        self._allocations.check(pointer, nbytes, "upload")
        if nbytes >= STAGED_FROM:
            if self._staging is None:
                self._staging = Staging(self._cuda, self._stream, self.name)
            self._staging.upload(pointer, array, progress)
            return
        # From pageable memory the driver has taken its copy when this returns.
        _checked(self._cuda.cuMemcpyHtoDAsync(pointer, array.ctypes.data, nbytes, self._stream), f"uploading to {self.name}")
        if progress is not None:
            progress(nbytes)

    def download(self, pointer: int, array: NDArray[Any]) -> None:
        self._enter("downloading")
        nbytes = checked_bytes(array, writable=True)
        self._allocations.check(pointer, nbytes, "download")
        _checked(
            self._cuda.cuMemcpyDtoHAsync(array.ctypes.data, pointer, nbytes, self._stream), f"downloading from {self.name}"
        )
        self.synchronize()

    def fill(self, pointer: int, nbytes: int, byte: int = 0) -> None:
        self._enter("filling memory")
        self._allocations.check(pointer, nbytes, "fill")
        _checked(self._cuda.cuMemsetD8Async(pointer, byte, nbytes, self._stream), f"filling memory of {self.name}")

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        self._enter("copying")
        self._allocations.check(source, nbytes, "copy")
        self._allocations.check(destination, nbytes, "copy to")
        _checked(self._cuda.cuMemcpyDtoDAsync(destination, source, nbytes, self._stream), f"copying on {self.name}")

    def compile(self, text: str) -> bytes | None:
        """Machine code from nvJitLink, or None if it does not know this GPU: then `load` has the driver compile the text."""
        try:
            return assemble(text, self.gpu).cubin
        except UnsupportedTarget as error:
            _log.info("%s: %s; the driver compiles instead", self.name, error)
            return None

    def load(
        self, text: str, entry: str, image: bytes | None = None, cache_dir: Path | None = None
    ) -> tuple[LoadedKernel, bool]:
        self._enter("loading a kernel")
        cuda = self._cuda
        if image is None:
            module = self._compiled_by_driver(text, entry)
        else:
            module = _checked(cuda.cuModuleLoadData(image), f"loading {entry} on {self.name}")
        self._modules.append(module)
        function = _checked(cuda.cuModuleGetFunction(module, entry.encode()), f"finding entry {entry} on {self.name}")
        attributes = cuda.CUfunction_attribute

        def figure(attribute: Any) -> int:
            return int(_checked(cuda.cuFuncGetAttribute(attribute, function), f"reading the figures of {entry} on {self.name}"))

        kernel = LoadedKernel(
            entry=entry,
            handle=function,
            shared_bytes=figure(attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
            local_bytes=figure(attributes.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
            registers=figure(attributes.CU_FUNC_ATTRIBUTE_NUM_REGS),
        )
        return kernel, False

    def launch(self, kernel: LoadedKernel, grid: Grid, block: Grid, parameters: ParameterBlock) -> None:
        if getattr(_current, "device", None) is not self or self.closed:
            self._enter("launching")
        (status,) = self._cuda.cuLaunchKernel(kernel.handle, *grid, *block, 0, self._stream, parameters.pointers, 0)
        if status:
            _checked((status,), f"launching {kernel.entry} (grid {grid}, block {block}) on {self.name}")

    def record(self) -> Any:
        self._enter("recording an event")
        event = _checked(self._cuda.cuEventCreate(0), f"making an event on {self.name}")
        self._events.append(event)
        _checked(self._cuda.cuEventRecord(event, self._stream), f"recording an event on {self.name}")
        return event

    def elapsed(self, start: Any, end: Any) -> float:
        self._enter("timing")
        _checked(self._cuda.cuEventSynchronize(end), f"waiting for {self.name}")
        milliseconds = _checked(self._cuda.cuEventElapsedTime(start, end), f"reading a time on {self.name}")
        return float(milliseconds) / 1e3

    def synchronize(self) -> None:
        self._enter("waiting")
        _checked(self._cuda.cuStreamSynchronize(self._stream), f"waiting for the work of {self.name}")

    def close(self) -> None:
        if self.closed:
            return
        cuda = self._cuda
        self.closed = True
        self.frees += 1
        # After a fault in a kernel every call fails; what is left goes with the process, and the fault has been reported.
        steps = [cuda.cuCtxSetCurrent(self._context), cuda.cuStreamSynchronize(self._stream)]
        if self._staging is not None:
            steps += self._staging.close()
        steps += [cuda.cuMemFree(base) for base in self._allocations.bases()]
        steps += [cuda.cuEventDestroy(event) for event in self._events]
        steps += [cuda.cuModuleUnload(module) for module in self._modules]
        steps += [cuda.cuStreamDestroy(self._stream), cuda.cuDevicePrimaryCtxRelease(self._gpu)]
        _current.device = None
        for status, *_ in steps:
            if status != cuda.CUresult.CUDA_SUCCESS:
                _log.warning("closing %s: %s", self.name, _words(cuda, status))
                break

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enter(self, doing: str) -> None:
        """Make this device's context the current one of the thread."""
        if self.closed:
            raise DeviceError(f"{self.name} is closed; {doing} needs an open device")
        if getattr(_current, "device", None) is not self:
            _checked(self._cuda.cuCtxSetCurrent(self._context), f"entering the context of {self.name}")
            _current.device = self

    def _attribute(self, attribute: Any) -> int:
        return int(
            _checked(self._cuda.cuDeviceGetAttribute(attribute, self._gpu), f"reading the attributes of GPU {self.ordinal}")
        )

    def _compiled_by_driver(self, text: str, entry: str) -> Any:
        cuda = self._cuda
        log = bytearray(JIT_LOG_BYTES)
        options = [cuda.CUjit_option.CU_JIT_ERROR_LOG_BUFFER, cuda.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        status, module = cuda.cuModuleLoadDataEx(text.encode() + b"\0", 2, options, [log, len(log)])
        if status != cuda.CUresult.CUDA_SUCCESS:
            words = log.split(b"\0", 1)[0].decode(errors="replace").strip()
            found = re.search(r"line (\d+)", words)
            line = f"\n  {text.splitlines()[int(found[1]) - 1].strip()}" if found and int(found[1]) <= text.count("\n") else ""
            raise DeviceError(f"{self.name}: the driver cannot compile {entry}: {_words(cuda, status)}\n  {words}{line}")
        _log.info("%s: %s compiled by the driver", self.name, entry)
        return module


def _checked(result: tuple[Any, ...], doing: str) -> Any:
    """The values of a driver call. Raises DeviceError with the driver's words and what was being done."""
    status, *values = result
    if status:
        raise DeviceError(f"{doing}: {_words(driver(), status)}")
    return values[0] if len(values) == 1 else tuple(values)


def _words(cuda: Any, status: Any) -> str:
    _, name = cuda.cuGetErrorName(status)
    _, text = cuda.cuGetErrorString(status)
    words = f"{name.decode() if name else int(status)}: {text.decode() if text else 'unknown error'}"
    fatal = (
        "ILLEGAL_ADDRESS",
        "ILLEGAL_INSTRUCTION",
        "MISALIGNED_ADDRESS",
        "LAUNCH_FAILED",
        "LAUNCH_TIMEOUT",
        "ASSERT",
        "INVALID_PC",
    )
    if any(word in words for word in fatal):
        words += " (a kernel before this call faulted; the GPU is lost to this process, which must be restarted)"
    return words


def _gpus(count: int) -> str:
    return "no GPU" if count == 0 else "one GPU, cuda:0" if count == 1 else f"{count} GPUs, cuda:0 to cuda:{count - 1}"


def _emission_target(name: str, gpu: Target) -> Target:
    known = [sm for sm in FIRST_PTX if sm <= gpu.sm]
    if not known:
        raise DeviceError(f"{name} is {gpu}; the oldest GPU supported is sm_{min(FIRST_PTX)}")
    return Target(max(known))
