"""PTX text -> machine code (cubin), with no GPU and no driver: the only place that talks to nvJitLink.

nvJitLink is reached through `cuda.bindings.nvjitlink`, which is a plain binding of a library and needs no driver. This is the
one exception to "ptxgen never imports cuda", so the import stands inside the function. Loading a cubin is the executor's work.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ptxgen.errors import PtxGenError
from ptxgen.target import Target

PACKAGE = "nvidia-nvjitlink"


@dataclass(frozen=True)
class Assembled:
    """Machine code and what the assembler says of it. Sizes in bytes; for several entries, the largest of each figure.

    shared: static shared memory that the text declares (without what the GPU reserves for itself). code: instructions of all
    entries together, with their padding.
    """

    cubin: bytes
    code: int
    registers: int
    spill_stores: int
    spill_loads: int
    shared: int
    stack: int
    log: str


class AssembleError(PtxGenError):
    """The assembler refused the text. `ptx_line` is the first line it names, 0 if it names none."""

    def __init__(self, message: str, ptx_line: int = 0, log: str = "") -> None:
        self.ptx_line = ptx_line
        self.log = log
        super().__init__(message)


class UnsupportedTarget(AssembleError):
    """This nvJitLink does not know the GPU; the driver may."""


def assemble(text: str, target: Target, *, line_info: bool = False) -> Assembled:
    """Assemble PTX `text` for the GPU `target`. With `line_info` the machine code says which PTX line it comes from.

    Raises AssembleError with the assembler's words, the PTX line and, where the text has `.loc`, the author's line;
    UnsupportedTarget if nvJitLink cannot write code for this GPU.
    """
    nvjitlink = _library()
    source = text.encode()
    options = [f"-arch={target}", "-verbose", *(["-lineinfo"] if line_info else [])]
    try:
        handle = nvjitlink.create(len(options), options)
    except nvjitlink.nvJitLinkError as error:
        raise UnsupportedTarget(f"{toolchain()} cannot write code for {target}: {error}") from error
    try:
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, source, len(source), "ptx")
            nvjitlink.complete(handle)
            cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
            nvjitlink.get_linked_cubin(handle, cubin)
        except nvjitlink.nvJitLinkError as error:
            raise _explained(text, target, _log(nvjitlink, handle, "error") or str(error)) from error
        log = _log(nvjitlink, handle, "info")
    finally:
        nvjitlink.destroy(handle)
    return Assembled(
        cubin=bytes(cubin),
        code=_code_bytes(bytes(cubin)),
        registers=_largest(r"Used (\d+) registers", log),
        spill_stores=_largest(r"(\d+) bytes spill stores", log),
        spill_loads=_largest(r"(\d+) bytes spill loads", log),
        shared=_largest(r"ptxas info.*?(\d+) bytes smem", log),
        stack=_largest(r"(\d+) bytes stack frame", log),
        log=log,
    )


@cache
def toolchain() -> str:
    """The assembler and its version, for cache keys and reports: `nvidia-nvjitlink 13.0.88`."""
    try:
        return f"{PACKAGE} {version(PACKAGE)}"
    except PackageNotFoundError:
        return f"{PACKAGE} (not installed)"


@cache
def _library() -> Any:
    try:
        from cuda.bindings import nvjitlink

        nvjitlink.version()  # loads the shared library
    except (ImportError, RuntimeError) as error:
        raise AssembleError(
            f"cannot load nvJitLink ({error}); install it with `pip install {PACKAGE} cuda-bindings`"
        ) from error
    return nvjitlink


def _log(nvjitlink: Any, handle: int, kind: str) -> str:
    size = getattr(nvjitlink, f"get_{kind}_log_size")(handle)
    buffer = bytearray(size)
    if size:
        getattr(nvjitlink, f"get_{kind}_log")(handle, buffer)
    return buffer.rstrip(b"\0").decode(errors="replace")


def _code_bytes(cubin: bytes) -> int:
    """Bytes of the sections .text.* of a 64-bit ELF file (System V ABI, "Object Files")."""
    (sections,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<3H", cubin, 0x3A)
    headers = [struct.unpack_from("<2I4Q", cubin, sections + size * i) for i in range(count)]
    names = headers[names_at][4]
    return sum(header[5] for header in headers if cubin.startswith(b".text.", names + header[0]))


def _largest(pattern: str, log: str) -> int:
    return max(map(int, re.findall(pattern, log)), default=0)


def _explained(text: str, target: Target, log: str) -> AssembleError:
    """The assembler's complaints, each with the PTX line that it names and the author's line behind that."""
    lines = text.splitlines()
    message = [f"{_entry(text)} does not assemble for {target}"]
    first = 0
    for complaint in log.splitlines():
        located = re.search(r"line (\d+); (?:error|fatal)\s*: (.*)", complaint)
        if not located:
            if "fatal" in complaint and "aborted due to errors" not in complaint:
                message.append(f"  {complaint}")
            continue
        number = int(located[1])
        first = first or number
        message.append(f"  ptx line {number}: {located[2]}")
        if 0 < number <= len(lines):
            message.append(f"    {lines[number - 1].strip()}")
            author = _author(lines, number)
            if author:
                message.append(f"    {author}")
    if len(message) == 1:
        message.append(f"  {log.strip()}")
    return AssembleError("\n".join(message), first, log)


def _entry(text: str) -> str:
    entry = re.search(r"\.entry\s+([\w$]+)", text)
    return entry[1] if entry else "text without an entry"


def _author(lines: list[str], number: int) -> str:
    """`file:line` of the nearest `.loc` above PTX line `number` in the same function, or an empty string."""
    for line in reversed(lines[:number]):
        loc = re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", line)
        if loc:
            files = (re.match(rf'\s*\.file\s+{loc[1]}\s+"([^"]*)"', declared) for declared in lines)
            return next((f"{file[1]}:{loc[2]}" for file in files if file), "")
        if re.search(r"\.(entry|func)\b", line):
            return ""
    return ""
