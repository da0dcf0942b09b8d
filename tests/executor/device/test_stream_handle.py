"""What counts as a stream of another library, and what does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver, runtime

from executor.device.stream_handle import LEGACY, stream_handle
from ptxgen.errors import ArgumentError


class Protocol:
    """A stream of cuda.core, say."""

    def __init__(self, said: Any) -> None:
        self.said = said

    def __cuda_stream__(self) -> Any:
        return self.said


class CUstream:
    """cuda-python's as it was without the protocol."""

    def __int__(self) -> int:
        return 0x70


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0x70, 0x70),
        (np.int64(2), 2),
        (0, LEGACY),
        (Protocol((0, 0x70)), 0x70),
        (Protocol((0, 0)), LEGACY),
        (SimpleNamespace(__cuda_stream__=(0, 0x70)), 0x70),
        (SimpleNamespace(cuda_stream=0x70), 0x70),
        (SimpleNamespace(cuda_stream=0), LEGACY),
        (SimpleNamespace(ptr=0x70, device_id=0), 0x70),
        (driver.CUstream(0x70), 0x70),
        (runtime.cudaStream_t(0x70), 0x70),
        (CUstream(), 0x70),
    ],
)
def test_a_handle_of_each_library(stream: Any, handle: int) -> None:
    assert stream_handle(stream) == handle


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (None, "stream is None; allowed: a handle of the driver, or a stream of cuda-python"),
        ("0", "stream is '0'; allowed"),
        (1.0, r"stream is 1\.0; allowed"),
        (True, "stream is True; allowed: a whole number"),
        (-1, "stream is -1; allowed: a whole number of at least 0"),
        (object(), "stream is a object; allowed"),
        (Protocol((1, 0x70)), "__cuda_stream__ of a Protocol is of version 1; version 0 can be read"),
        (Protocol(0x70), r"__cuda_stream__ of a Protocol gave 112; must be \(0, handle\)"),
        (Protocol((0, "x")), "the handle of __cuda_stream__ is 'x'"),
        (SimpleNamespace(cuda_stream=None), "stream.cuda_stream is None"),
        (SimpleNamespace(ptr="x"), "stream.ptr is 'x'"),
    ],
)
def test_what_is_no_stream_is_refused(stream: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        stream_handle(stream)
