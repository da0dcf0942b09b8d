"""Matrix products by cuBLASLt, through nvmath-python (the extra `cublas`): a second opinion for benchmarks. Neither
ptxgen nor executor uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from executor.base.errors import DeviceError
from executor.device.cuda import CudaDevice
from executor.device.cuda_context import checked
from executor.device.cuda_gpu import driver
from executor.memory.buffers import GpuBuffer
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen.extras import install
from ptxgen.types import U8

WORKSPACE: Final = 32 << 20
"""Bytes that cuBLASLt may use besides: what NVIDIA recommends for Hopper."""
CANDIDATES: Final = 8
"""Algorithms that the heuristic is asked for; all are timed."""

COMPUTE_32F: Final = 68  # cublasComputeType_t CUBLAS_COMPUTE_32F
R_32F: Final = 0
TRANSPOSED: Final = 1
OPERANDS: Final = {"f16": 2, "bf16": 14, "e4m3": 28}
"""cudaDataType_t of what is multiplied; sums and results are f32."""


class NoCublas(PtxGenError):
    """nvmath-python or cuBLASLt is not installed."""


def bindings() -> Any:
    """nvmath's cuBLASLt. NoCublas, with what to install, if it cannot be used."""
    try:
        from nvmath.bindings import cublasLt  # all of nvmath comes with it

        cublasLt.get_version()
    except Exception as error:
        raise NoCublas(f"cuBLASLt cannot be used ({error}): {install('cublas')}") from error
    return cublasLt


class Matmul:
    """Y = X W^T on a GPU. w: [n, k], x: [m, k] of an operand type, y: f32[m, n]; all row-major. fast: products of 8 bits may be
    summed with fewer bits."""

    def __init__(self, device: CudaDevice, k: int, n: int, m: int, operands: str = "f16", *, fast: bool = False) -> None:
        if operands not in OPERANDS:
            raise ArgumentError(f"operands are {operands!r}; allowed: {', '.join(OPERANDS)}")
        self._lt = lt = bindings()
        device.enter("using cuBLASLt")
        self._stream = int(device.sharing.stream)
        self._handle = lt.create()
        self._workspace = GpuBuffer.empty(device, U8, (WORKSPACE,), "cuBLASLt workspace")
        self._one, self._zero = np.ones(1, np.float32), np.zeros(1, np.float32)
        self._product = lt.matmul_desc_create(COMPUTE_32F, R_32F)
        attributes = lt.MatmulDescAttribute
        self._set(
            lt.matmul_desc_set_attribute, lt.get_matmul_desc_attribute_dtype, self._product, attributes.TRANSA, TRANSPOSED
        )
        if fast:
            self._set(lt.matmul_desc_set_attribute, lt.get_matmul_desc_attribute_dtype, self._product, attributes.FAST_ACCUM, 1)
        # Its matrices are column-major, so ours are their transposes: Y^T = (W^T)^T X^T.
        kind = OPERANDS[operands]
        self._w, self._x = lt.matrix_layout_create(kind, k, n, k), lt.matrix_layout_create(kind, k, m, k)
        self._y = lt.matrix_layout_create(R_32F, n, m, n)
        self._found = lt.MatmulHeuristicResult(CANDIDATES)
        self.algorithms = self._heuristic()
        """How many there are to choose from."""
        self.chosen = 0

    def _heuristic(self) -> int:
        lt = self._lt
        preference = lt.matmul_preference_create()
        most = lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
        self._set(lt.matmul_preference_set_attribute, lt.get_matmul_preference_attribute_dtype, preference, most, WORKSPACE)
        count = np.zeros(1, np.int32)
        layouts = (self._w, self._x, self._y, self._y)
        lt.matmul_algo_get_heuristic(
            self._handle, self._product, *layouts, preference, CANDIDATES, self._found.ptr, count.ctypes.data
        )
        lt.matmul_preference_destroy(preference)
        if not count[0]:
            raise NoCublas("cuBLASLt knows no algorithm for this product on this GPU")
        return int(count[0])

    @staticmethod
    def _set(setter: Callable[..., None], dtype_of: Callable[[int], Any], thing: int, attribute: int, value: int) -> None:
        held = np.array([value], dtype_of(attribute))
        setter(thing, attribute, held.ctypes.data, held.nbytes)

    def __call__(self, w: GpuBuffer, x: GpuBuffer, y: GpuBuffer) -> None:
        """Put the product on the device's stream, by algorithm `chosen`."""
        algorithm = self._found.ptr + self.chosen * self._lt.matmul_heuristic_result_dtype.itemsize
        self._lt.matmul(
            self._handle, self._product, self._one.ctypes.data, w.pointer, self._w, x.pointer, self._x,
            self._zero.ctypes.data, y.pointer, self._y, y.pointer, self._y, algorithm, self._workspace.pointer, WORKSPACE,
            self._stream,
        )  # fmt: skip

    def close(self) -> None:
        """Give everything back."""
        for layout in (self._w, self._x, self._y):
            self._lt.matrix_layout_destroy(layout)
        self._lt.matmul_desc_destroy(self._product)
        self._lt.destroy(self._handle)
        self._workspace.free()


class Captured:
    """Work that was put on a device's stream, to be run again as one CUDA graph: what a library launches there, too."""

    def __init__(self, device: CudaDevice, work: Callable[[], None]) -> None:
        self._device, self._cuda = device, driver()
        cuda, stream = self._cuda, device.sharing.stream
        work()  # loads modules, which a capture does not allow
        device.synchronize()
        device.enter("capturing")
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(cuda, cuda.cuStreamBeginCapture(stream, mode), "capturing")
        try:
            work()
        finally:
            status, graph = cuda.cuStreamEndCapture(stream)
        if status:
            raise DeviceError(f"{device.name}: the work cannot be captured")
        self._graph = graph
        self._instance = checked(cuda, cuda.cuGraphInstantiate(graph, 0), "instantiating a graph")

    def __call__(self) -> None:
        """Run it."""
        self._device.enter("launching a graph")
        checked(self._cuda, self._cuda.cuGraphLaunch(self._instance, self._device.sharing.stream), "launching a graph")

    def seconds(self, runs: int) -> list[float]:
        """Of each of so many runs, after three that warm up."""
        for _ in range(3):
            self()
        times = []
        for _ in range(runs):
            start = self._device.record()
            self()
            times.append(self._device.elapsed(start, self._device.record()))
        return times

    def close(self) -> None:
        """Give the graph back."""
        self._cuda.cuGraphExecDestroy(self._instance)
        self._cuda.cuGraphDestroy(self._graph)
