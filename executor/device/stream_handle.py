"""CUDA streams of whatever library as handles of the driver. No driver is needed to read them."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from executor.base.arguments import described, whole
from ptxgen.errors import ArgumentError

LEGACY = 1
"""The legacy default stream by its own handle. (0 is that one, or the thread's, as a program was compiled.)"""
_BINDINGS = ("CUstream", "cudaStream_t")
"""The classes of cuda-python, which have `__cuda_stream__` only from 13.1 on."""


def stream_handle(stream: Any) -> int:
    """The handle of a stream: a whole number (0 and 1: the legacy default stream, 2: the thread's); anything with
    `__cuda_stream__` (https://nvidia.github.io/cuda-python/cuda-core/latest/interoperability.html), as streams of cuda.core,
    PyTorch and CuPy have it; in older versions theirs by `cuda_stream` and `ptr`; cuda-python's. ArgumentError for anything
    else."""
    if isinstance(stream, Integral):
        handle = whole("stream", stream, 0)
    elif hasattr(stream, "__cuda_stream__"):
        handle = _of_protocol(stream)
    elif hasattr(stream, "cuda_stream"):
        handle = whole("stream.cuda_stream", stream.cuda_stream, 0)
    elif hasattr(stream, "ptr"):
        handle = whole("stream.ptr", stream.ptr, 0)
    elif type(stream).__name__ in _BINDINGS:
        handle = int(stream)
    else:
        raise ArgumentError(
            f"stream is {described(stream)}; allowed: a handle of the driver, or a stream of cuda-python, cuda.core, PyTorch, "
            "CuPy or whatever has __cuda_stream__"
        )
    return handle or LEGACY


def _of_protocol(stream: Any) -> int:
    said = stream.__cuda_stream__() if callable(stream.__cuda_stream__) else stream.__cuda_stream__  # at first a property
    try:
        version, handle = said
    except (TypeError, ValueError):
        raise ArgumentError(f"__cuda_stream__ of {described(stream)} gave {described(said)}; must be (0, handle)") from None
    if version != 0:
        raise ArgumentError(f"__cuda_stream__ of {described(stream)} is of version {described(version)}; version 0 can be read")
    return whole("the handle of __cuda_stream__", handle, 0)
