"""Which GPU it is: the driver, what it says of a GPU before anything runs there, what text and machine code are written for."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from executor.base.errors import DeviceError
from executor.device.cuda_context import checked, driver_message
from executor.device.limits import limited
from ptxgen.gpus.gpu import Gpu, newest_for, of_line, of_product
from ptxgen.gpus.multiprocessor import multiprocessor_of
from ptxgen.target import FIRST_PTX, Target


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
        raise DeviceError(f"the NVIDIA driver does not start: {driver_message(bindings, status)}")
    return bindings


@dataclass(frozen=True)
class GpuFacts:
    """What the driver says of a GPU. handle: the driver's; whole: the GPU described, with
    what the driver does not say from the table of known ones; card: as kernels are chosen for it, within the limits that it was
    given; gpu: what machine code is written for; target: what text is emitted for."""

    ordinal: int
    handle: Any
    whole: Gpu
    card: Gpu
    gpu: Target
    target: Target
    driver_version: int

    @property
    def name(self) -> str:
        """How the device is called in messages."""
        return _name(self.ordinal, self.card.product)

    def facts(self) -> dict[str, Any]:
        """For people, ready for JSON."""
        card = self.whole
        return {
            "name": _name(self.ordinal, card.product),
            "target": str(self.gpu),
            "multiprocessors": card.multiprocessors,
            "clock_mhz": card.clock_mhz,
            "bandwidth_gbps": card.bandwidth_gbps,
            "memory_gb": card.memory_gb,
            "l2_bytes": card.l2_bytes,
            "shared_block_bytes": card.most_shared,
            "source": card.source,
        }

    @classmethod
    def read(cls, cuda: Any, ordinal: int, limits: Gpu | None = None) -> GpuFacts:
        """Of GPU number `ordinal`, with the limits of another one if there are any; `cuda` is cuda.bindings.driver. DeviceError
        if it is not there, or older than any known; ArgumentError as `limited`."""
        count = _count(cuda)
        if not 0 <= ordinal < count:
            raise DeviceError(f"there is no cuda:{ordinal}; the driver shows {_gpus(count)}")
        handle = checked(cuda, cuda.cuDeviceGet(ordinal), f"opening GPU {ordinal}")
        product = checked(cuda, cuda.cuDeviceGetName(256, handle), "reading the GPU's name").split(b"\0")[0].decode()

        def attribute(name: str) -> int:
            answer = cuda.cuDeviceGetAttribute(getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), handle)
            return int(checked(cuda, answer, f"reading the attributes of GPU {ordinal}"))

        gpu = Target(attribute("COMPUTE_CAPABILITY_MAJOR") * 10 + attribute("COMPUTE_CAPABILITY_MINOR"))
        target = _emission_target(_name(ordinal, product), gpu)
        memory = int(checked(cuda, cuda.cuDeviceTotalMem(handle), f"reading the memory of GPU {ordinal}"))
        whole = _described(product, target, attribute, memory)
        card = whole if limits is None else limited(whole, limits)
        return cls(
            ordinal=ordinal,
            handle=handle,
            whole=whole,
            card=card,
            gpu=gpu,
            target=card.target,
            driver_version=int(checked(cuda, cuda.cuDriverGetVersion(), "reading the driver's version")),
        )


def gpus_there() -> tuple[GpuFacts, ...]:
    """All GPUs that the driver shows. DeviceError if there is no driver, or one of them is older than any known."""
    cuda = driver()
    return tuple(GpuFacts.read(cuda, ordinal) for ordinal in range(_count(cuda)))


def _count(cuda: Any) -> int:
    return int(checked(cuda, cuda.cuDeviceGetCount(), "counting GPUs"))


def assembly_target(text: str, gpu: Target) -> Target:
    """What the assembler is asked for: the GPU, with the feature of it that the text says it uses."""
    named = re.search(r"^\.target (sm_\d+a)\b", text, re.MULTILINE)
    return gpu if named is None or Target.parse(named[1]).sm != gpu.sm else Target.parse(named[1])


def _described(product: str, target: Target, attribute: Callable[[str], int], memory: int) -> Gpu:
    """A GPU with so many bytes of memory."""
    like = of_product(product) or _unknown(product, newest_for(target), attribute)
    return replace(
        like,
        sm=target.sm,
        multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        clock_mhz=attribute("CLOCK_RATE") // 1000,
        memory_gb=round(memory / (1 << 30)),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        source="the driver, and what it does not say: " + like.source,
        multiprocessor=replace(
            of_line(multiprocessor_of(target.sm), product),
            threads=attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
            blocks=attribute("MAX_BLOCKS_PER_MULTIPROCESSOR"),
            registers=attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
            shared_bytes=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            shared_block_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            shared_reserved_bytes=attribute("RESERVED_SHARED_MEMORY_PER_BLOCK"),
        ),
    )


def _unknown(product: str, like: Gpu, attribute: Callable[[str], int]) -> Gpu:
    """A GPU that is in no table, `like` one that is: its bandwidth is that of its memory's bus and clock, at two transfers a
    clock, where the driver says them (a Jetson's does not)."""
    bus = 0
    with suppress(DeviceError):
        bus = 2 * attribute("MEMORY_CLOCK_RATE") * attribute("GLOBAL_MEMORY_BUS_WIDTH") // 8_000_000
    bandwidth = bus or like.bandwidth_gbps
    return replace(like, name=product, title=product, product=product, bandwidth_gbps=bandwidth, read_gbps=0)


def _emission_target(name: str, gpu: Target) -> Target:
    targets = [sm for sm in FIRST_PTX if sm <= gpu.sm]
    if not targets:
        raise DeviceError(f"{name} is {gpu}; the oldest GPU supported is sm_{min(FIRST_PTX)}")
    return Target(max(targets))


def _name(ordinal: int, product: str) -> str:
    return f"cuda:{ordinal} ({product})"


def _gpus(count: int) -> str:
    return "no GPU" if count == 0 else "one GPU, cuda:0" if count == 1 else f"{count} GPUs, cuda:0 to cuda:{count - 1}"
