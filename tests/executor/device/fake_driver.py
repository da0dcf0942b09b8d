"""A CUDA driver made of host memory, for the logic of executor/device/cuda.py where there is no GPU. It runs no kernel."""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import Any

from cuda.bindings import driver as real

R = real.CUresult
OK = R.CUDA_SUCCESS
WITHOUT_CONTEXT = ("cuGetError", "cuDevice", "cuDriver", "cuInit")
"""Starts of the names of calls that a broken context does not harm."""


class FakeDriver:
    """`live` counts what was made and not given back; `failing` maps a call to the status that it returns. `fault` breaks the
    context, as a kernel does: from then on every call answers with its status, until the primary context is reset."""

    CUresult = real.CUresult
    CUdevice_attribute = real.CUdevice_attribute
    CUfunction_attribute = real.CUfunction_attribute
    CUjit_option = real.CUjit_option
    CUstream_flags = real.CUstream_flags
    CUevent_flags = real.CUevent_flags
    CUkernelNodeAttrID = real.CUkernelNodeAttrID
    CUkernelNodeAttrValue = real.CUkernelNodeAttrValue
    CUDA_KERNEL_NODE_PARAMS = type("Parameters", (), {})
    CUgraphEdgeData = type("Edge", (), {})
    CUgraphDependencyType = real.CUgraphDependencyType

    def __init__(self, gpus: int = 1, capability: tuple[int, int] = (9, 0), memory: int = 1 << 30) -> None:
        self.gpus = gpus
        self.capability = capability
        self.product = "Fake GPU"
        self.free_bytes = self.total_bytes = memory
        self.shared_bytes = 228 * 1024
        self.live: Counter[str] = Counter()
        self.launches: list[tuple[Any, ...]] = []
        self.modules: list[Any] = []
        self.copies: list[int] = []
        self.asked: list[tuple[str, int]] = []  # attributes of functions
        self.failing: dict[str, Any] = {}
        self.refused: set[bytes] = set()  # images that do not load
        self.broken: Any = None
        self.contexts = 0  # primary contexts made so far
        self.apart: set[tuple[int, int]] = set()  # GPUs of which the first has no way to the second
        self.reached: list[tuple[Any, Any]] = []  # contexts of which the first may use the second's memory
        self.uploaded: list[Any] = []  # contexts whose graphs were there before they were launched
        self.current: Any = None
        self._memory: dict[int, Any] = {}
        self._sizes: dict[int, int] = {}

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu"):
            broken = None if name.startswith(WITHOUT_CONTEXT) else object.__getattribute__(self, "broken")
            status = object.__getattribute__(self, "failing").get(name) or broken
            if status:
                return lambda *_: (status,) if "Launch" in name else (status, None)
        return object.__getattribute__(self, name)

    def fault(self, status: Any = R.CUDA_ERROR_ILLEGAL_ADDRESS) -> None:
        self.broken = status

    def cuGetErrorName(self, status: Any) -> tuple[Any, bytes]:
        return OK, R(status).name.encode()

    def cuGetErrorString(self, status: Any) -> tuple[Any, bytes]:
        return OK, b"as the driver words it"

    def cuDeviceGetCount(self) -> tuple[Any, int]:
        return OK, self.gpus

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, int]:
        return OK, ordinal

    def cuDeviceGetName(self, length: int, gpu: int) -> tuple[Any, bytes]:
        return OK, self.product.encode().ljust(length, b"\0")

    def cuDeviceGetAttribute(self, attribute: Any, gpu: int) -> tuple[Any, int]:
        a = self.CUdevice_attribute
        values = {
            a.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: 132,
            a.CU_DEVICE_ATTRIBUTE_CLOCK_RATE: 1_980_000,  # kHz, as the next
            a.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: 1_000_000,
            a.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: 4096,
            a.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: 40 << 20,
            a.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: 2048,
            a.CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: 32,
            a.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: 65536,
            a.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: self.shared_bytes - 1024,
            a.CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: 1024,
            a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: self.capability[0],
            a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: self.capability[1],
            a.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: self.shared_bytes,
        }
        return OK, values[attribute]

    def cuDeviceTotalMem(self, gpu: int) -> tuple[Any, int]:
        return OK, self.total_bytes

    def cuDriverGetVersion(self) -> tuple[Any, int]:
        return OK, 13000

    def cuDevicePrimaryCtxRetain(self, gpu: int) -> tuple[Any, str]:
        self.contexts += not self.live["context"]
        self.live["context"] += 1
        return OK, f"context {gpu}"

    def cuDevicePrimaryCtxReset(self, gpu: int) -> tuple[Any]:
        """Takes everything in the context with it, but not the retains."""
        self.broken = None
        self._memory.clear()
        self.free_bytes += sum(self._sizes.values())
        self._sizes.clear()
        self.live = Counter({"context": self.live["context"]})
        return (OK,)

    def cuDevicePrimaryCtxRelease(self, gpu: int) -> tuple[Any]:
        self.live["context"] -= 1
        return (OK,)

    def cuCtxSetCurrent(self, context: Any) -> tuple[Any]:
        self.current = context
        return (OK,)

    def cuDeviceCanAccessPeer(self, gpu: int, other: int) -> tuple[Any, int]:
        return OK, int((gpu, other) not in self.apart)

    def cuCtxEnablePeerAccess(self, other: Any, flags: int) -> tuple[Any]:
        if (self.current, other) in self.reached:
            return (R.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,)
        self.reached.append((self.current, other))
        return (OK,)

    def cuStreamCreate(self, flags: int) -> tuple[Any, str]:
        self.live["stream"] += 1
        return OK, "stream"

    def cuStreamDestroy(self, stream: Any) -> tuple[Any]:
        self.live["stream"] -= 1
        return (OK,)

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> tuple[Any]:
        return (OK,)

    def cuStreamSynchronize(self, stream: Any) -> tuple[Any]:
        return (OK,)

    def cuMemGetInfo(self) -> tuple[Any, int, int]:
        return OK, self.free_bytes, self.total_bytes

    def cuMemAlloc(self, nbytes: int) -> tuple[Any, int | None]:
        if nbytes > self.free_bytes:
            return R.CUDA_ERROR_OUT_OF_MEMORY, None
        pointer = self._take("memory", nbytes)
        self._sizes[pointer] = nbytes
        self.free_bytes -= nbytes
        return OK, pointer

    def cuMemFree(self, pointer: int) -> tuple[Any]:
        self.free_bytes += self._sizes.pop(pointer)
        return self._give_back("memory", pointer)

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[Any, int]:
        return OK, self._take("pinned", nbytes)

    def cuMemFreeHost(self, pointer: int) -> tuple[Any]:
        return self._give_back("pinned", pointer)

    def cuMemcpyHtoDAsync(self, destination: int, source: int, nbytes: int, stream: Any) -> tuple[Any]:
        self.copies.append(nbytes)
        ctypes.memmove(destination, source, nbytes)
        return (OK,)

    def cuMemcpyDtoHAsync(self, destination: int, source: int, nbytes: int, stream: Any) -> tuple[Any]:
        ctypes.memmove(destination, source, nbytes)
        return (OK,)

    def cuMemcpyDtoDAsync(self, destination: int, source: int, nbytes: int, stream: Any) -> tuple[Any]:
        ctypes.memmove(destination, source, nbytes)
        return (OK,)

    def cuMemsetD8Async(self, pointer: int, byte: int, nbytes: int, stream: Any) -> tuple[Any]:
        ctypes.memset(pointer, byte, nbytes)
        return (OK,)

    def cuEventCreate(self, flags: int) -> tuple[Any, str]:
        self.live["event"] += 1
        return OK, "event"

    def cuEventDestroy(self, event: Any) -> tuple[Any]:
        self.live["event"] -= 1
        return (OK,)

    def cuEventRecord(self, event: Any, stream: Any) -> tuple[Any]:
        return (OK,)

    def cuEventSynchronize(self, event: Any) -> tuple[Any]:
        return (OK,)

    def cuEventElapsedTime(self, start: Any, end: Any) -> tuple[Any, float]:
        return OK, 1.5

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, str | None]:
        if image in self.refused:
            return R.CUDA_ERROR_INVALID_IMAGE, None
        self.live["module"] += 1
        self.modules.append(image)
        return OK, "module"

    def cuModuleLoadDataEx(self, image: bytes, count: int, options: list[Any], values: list[Any]) -> tuple[Any, Any]:
        if b"nonsense" in image:
            log = b"ptxas application ptx input, line 2; error: nonsense"
            values[0][: len(log)] = log
            return R.CUDA_ERROR_INVALID_PTX, None
        return self.cuModuleLoadData(image)

    def cuModuleUnload(self, module: Any) -> tuple[Any]:
        self.live["module"] -= 1
        return (OK,)

    def cuModuleGetFunction(self, module: Any, name: bytes) -> tuple[Any, Any]:
        return OK, f"function {name.decode()}"

    def cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> tuple[Any]:
        self.asked.append((attribute.name, value))
        return (OK,)

    def cuFuncGetAttribute(self, attribute: Any, function: Any) -> tuple[Any, int]:
        return OK, int(attribute)

    def cuLaunchKernel(self, *call: Any) -> tuple[Any]:
        self.launches.append(call)
        return (OK,)

    def cuLaunchCooperativeKernel(self, *call: Any) -> tuple[Any]:
        self.launches.append(("cooperative", *call))
        return (OK,)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function: Any, threads: int, shared: int) -> tuple[Any, int]:
        return OK, 1024 // threads

    def cuGraphCreate(self, flags: int) -> tuple[Any, str]:
        self.live["graph"] += 1
        return OK, "graph"

    def cuGraphAddKernelNode(self, graph: Any, before: list[Any], count: int, parameters: Any) -> tuple[Any, Any]:
        return OK, parameters

    def cuGraphAddDependencies(self, graph: Any, starts: Any, ends: Any, edges: Any, count: int) -> tuple[Any]:
        return (OK,)

    def cuGraphKernelNodeSetAttribute(self, node: Any, attribute: Any, value: Any) -> tuple[Any]:
        return (OK,)

    def cuGraphInstantiate(self, graph: Any, flags: int) -> tuple[Any, str]:
        self.live["instance"] += 1
        return OK, "instance"

    def cuGraphUpload(self, instance: Any, stream: Any) -> tuple[Any]:
        self.uploaded.append(self.current)
        return (OK,)

    def cuGraphLaunch(self, instance: Any, stream: Any) -> tuple[Any]:
        return (OK,)

    def cuGraphExecDestroy(self, instance: Any) -> tuple[Any]:
        self.live["instance"] -= 1
        return (OK,)

    def cuGraphDestroy(self, graph: Any) -> tuple[Any]:
        self.live["graph"] -= 1
        return (OK,)

    def _take(self, kind: str, nbytes: int) -> int:
        block = ctypes.create_string_buffer(nbytes + 256)
        base = -(-ctypes.addressof(block) // 256) * 256
        self._memory[base] = block
        self.live[kind] += 1
        return base

    def _give_back(self, kind: str, pointer: int) -> tuple[Any]:
        del self._memory[pointer]
        self.live[kind] -= 1
        return (OK,)
