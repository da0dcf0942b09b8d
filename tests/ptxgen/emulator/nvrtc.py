"""CUDA C++ -> PTX through NVRTC: foreign text for the emulator to run."""

from __future__ import annotations

import functools

from cuda.bindings import nvrtc


@functools.cache
def compile_cuda(source: str, *options: str) -> str:
    """The PTX that NVRTC makes of `source` for sm_90; the compiler's log as a RuntimeError if it refuses."""
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    flags = [b"--gpu-architecture=compute_90", b"--std=c++17", *(o.encode() for o in options)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    if int(status):
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode())
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text: bytes = b" " * size
    nvrtc.nvrtcGetPTX(program, text)
    return text.rstrip(b"\0 ").decode()
