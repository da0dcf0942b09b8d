"""Kernels as the CUDA driver loads them: from machine code, or from text that it compiles itself. Belongs to cuda.py."""

from __future__ import annotations

import logging
import re
from typing import Any

from executor.base.errors import DeviceError
from executor.device.cuda_context import driver_message
from executor.device.cuda_event import Check
from executor.device.limits import require_shared
from executor.device.protocol import LoadedKernel
from ptxgen.gpus.gpu import Gpu

JIT_LOG_BYTES = 16384

_log = logging.getLogger(__name__)


class CudaModules:
    """The modules of one device. `cuda` is cuda.bindings.driver; `check` takes a driver's answer and what was being done, and
    gives the values or raises; `whole`, `card`: as of GpuFacts. The device's context must be the current one."""

    def __init__(self, cuda: Any, check: Check, name: str, whole: Gpu, card: Gpu) -> None:
        self._cuda = cuda
        self._check = check
        self._name = name
        self._whole, self._card = whole, card
        self._modules: list[Any] = []

    def load(
        self, text: str, entry: str, image: bytes | None, dynamic_shared: int, shared_room: int, *, cooperative: bool
    ) -> LoadedKernel:
        """An entry of `image`, machine code, or of `text`, whose launches may ask for so many bytes of shared memory, want so
        much of it on a multiprocessor (LaunchConfig.shared_room) and are cooperative or not. Raises DeviceError if the driver
        refuses it; nothing stays loaded then."""
        if image is None:
            module = self._compiled(text, entry)
        else:
            module = self._check(self._cuda.cuModuleLoadData(image), f"loading {entry}")
        self._modules.append(module)
        try:
            kernel = self._kernel(module, entry, dynamic_shared, cooperative)
            if 0 < shared_room <= self._card.multiprocessor.shared_bytes:  # of a smaller GPU there would be no L1 cache left
                self._keep_room(kernel, shared_room)
            return kernel
        except BaseException:
            self.forget(module)
            self._cuda.cuModuleUnload(module)
            raise

    def unload(self, module: Any) -> None:
        """Give a module back."""
        self.forget(module)
        self._check(self._cuda.cuModuleUnload(module), "unloading a kernel")

    def forget(self, module: Any) -> None:
        """Count a module as gone: a fault takes it with its context."""
        self._modules.remove(module)

    def close(self) -> list[tuple[Any, ...]]:
        """Unload all; returns the driver's answers."""
        answers = [self._cuda.cuModuleUnload(module) for module in self._modules]
        self._modules.clear()
        return answers

    def _kernel(self, module: Any, entry: str, dynamic_shared: int, cooperative: bool) -> LoadedKernel:
        function = self._check(self._cuda.cuModuleGetFunction(module, entry.encode()), f"finding entry {entry}")
        attributes = self._cuda.CUfunction_attribute

        def figure(attribute: Any) -> int:
            answer = self._cuda.cuFuncGetAttribute(attribute, function)
            return int(self._check(answer, f"reading the figures of {entry}"))

        shared_bytes = figure(attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        require_shared(self._name, self._card, entry, shared_bytes + dynamic_shared)
        if dynamic_shared:
            most = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            answer = self._cuda.cuFuncSetAttribute(function, most, dynamic_shared)
            self._check(answer, f"letting {entry} have {dynamic_shared} bytes of shared memory")
        return LoadedKernel(
            entry=entry,
            handle=function,
            module=module,
            shared_bytes=shared_bytes,
            local_bytes=figure(attributes.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
            registers=figure(attributes.CU_FUNC_ATTRIBUTE_NUM_REGS),
            dynamic_shared=dynamic_shared,
            cooperative=cooperative,
        )

    def _keep_room(self, kernel: LoadedKernel, nbytes: int) -> None:
        """Ask for a share of the memory of a multiprocessor that has so many bytes for shared memory."""
        share = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        percent = -(-100 * nbytes // self._whole.multiprocessor.shared_bytes)
        answer = self._cuda.cuFuncSetAttribute(kernel.handle, share, percent)
        self._check(answer, f"asking for {percent} % of shared memory for {kernel.entry}")

    def _compiled(self, text: str, entry: str) -> Any:
        cuda = self._cuda
        log = bytearray(JIT_LOG_BYTES)
        options = [cuda.CUjit_option.CU_JIT_ERROR_LOG_BUFFER, cuda.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        status, module = cuda.cuModuleLoadDataEx(text.encode() + b"\0", 2, options, [log, len(log)])
        if status:
            message = log.split(b"\0", 1)[0].decode(errors="replace").strip()
            match = re.search(r"line (\d+)", message)
            number = int(match[1]) if match else 0
            line = f"\n  {text.splitlines()[number - 1].strip()}" if 0 < number <= text.count("\n") else ""
            raise DeviceError(
                f"{self._name}: the driver cannot compile {entry}: {driver_message(cuda, status)}\n  {message}{line}"
            )
        _log.info("%s: %s compiled by the driver", self._name, entry)
        return module
