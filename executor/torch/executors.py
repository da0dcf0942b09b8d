"""The executors that operators run on: one for each device and thread that asks, since an executor belongs to one thread.
Tensors of a CPU have the emulator."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from executor.api.executor import CudaExecutor
from ptxgen.errors import ArgumentError

_opened = threading.local()


@contextmanager
def executor_of(device: torch.device) -> Iterator[CudaExecutor]:
    """The executor for tensors of a device, whose work in the block goes to PyTorch's current stream there. It is opened when
    it is first asked for, and closed with its thread. PyTorch's current device stays what it was. ArgumentError for a device
    that is neither a CPU nor an NVIDIA GPU, LaunchError while PyTorch captures that stream."""
    if device.type == "cpu":
        yield _executor("emulator")
    elif device.type == "cuda" and torch.version.cuda is not None:
        index = torch.cuda.current_device() if device.index is None else device.index
        with torch.cuda.device(index):  # the driver's context, which the executor sets, is what PyTorch goes by
            executor = _executor(f"cuda:{index}")
            with executor.using(torch.cuda.current_stream(index)):
                yield executor
    else:
        raise ArgumentError(f"the tensors are on {device}; allowed: cpu (on the emulator) and NVIDIA's cuda")


def _executor(spec: str) -> CudaExecutor:
    held: dict[str, CudaExecutor] = _opened.__dict__
    if spec not in held:
        held[spec] = CudaExecutor(spec)
    return held[spec]
