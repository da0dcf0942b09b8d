"""`CudaSourceKernel`: a kernel type whose body is CUDA C++, compiled by NVRTC to PTX. Everything else about it is the contract
of kernel_type.py, so that emulator, conformance kit, executor and caches see no difference. The only place that talks to NVRTC.

NVRTC is reached through `cuda.bindings.nvrtc`, which needs no driver: the second exception to "ptxgen never imports cuda" (the
first is assemble.py), so the import stands inside the function. The compiler is the optional package of the extra `nvrtc`.
"""

from __future__ import annotations

import inspect
import linecache
import logging
import re
from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final

from ptxgen.dsl.arguments import Argument, Array
from ptxgen.dsl.builder import KernelBuilder, parameters
from ptxgen.dsl.ir import Function, SharedArray
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import AuthorError, Location, PtxGenError
from ptxgen.extras import install
from ptxgen.target import NEWEST_PTX, Target
from ptxgen.types import BY_NAME, U8

OPTIONS: Final = ("--std=c++17", "--fmad=false")
"""Without --fmad=false the results would hang on which sums the compilers fuse; write fmaf(a, b, c) where it is meant."""

_C_TYPES: Final = {
    "u8": "unsigned char",
    "u16": "unsigned short",
    "u32": "unsigned int",
    "u64": "unsigned long long",
    "s8": "signed char",
    "s16": "short",
    "s32": "int",
    "s64": "long long",
    "b8": "unsigned char",
    "b16": "unsigned short",
    "b32": "unsigned int",
    "b64": "unsigned long long",
    "f16": "unsigned short",
    "bf16": "unsigned short",
    "f16x2": "unsigned int",
    "bf16x2": "unsigned int",
    "f32": "float",
    "f64": "double",
}
"""Half types are passed as their bits: NVRTC brings no cuda_fp16.h."""

_log = logging.getLogger(__name__)


class CompileError(AuthorError):
    """NVRTC refused the source. `where` is the first line it names, `log` all that it said."""

    def __init__(self, message: str, where: Location | None, log: str, more: str = "") -> None:
        self.log = log
        super().__init__(message, where, more)


@dataclass(frozen=True)
class CudaSourceKernel(KernelType):
    """A kernel whose body is CUDA C++. The signature's arguments are the function's parameters, by their names (arrays as
    `const T*` or `T*`, never overlapping); the whole numbers and truth values of the shape are constants, by the names of their
    fields.

    The arithmetic is what is written: no product and sum are fused unless the source says fmaf."""

    options: ClassVar[tuple[str, ...]] = ()
    """Further options of NVRTC, after OPTIONS."""

    @abstractmethod
    def source(self) -> str:
        """The statements of the kernel's body."""

    def preamble(self) -> str:
        """What stands before the kernel: `__device__` functions, types."""
        return ""

    def emit(self, k: KernelBuilder) -> None:
        raise PtxGenError(f"{self.name} is written in CUDA C++, not with the builder; ptxgen.module.emit gives its text")


def compile_kernel(kernel: CudaSourceKernel, target: Target, *, lines: bool = False) -> tuple[str, Function]:
    """The PTX text of a kernel, and what is known of it as a function: parameters, geometry, shared arrays, no instructions.

    With `lines` the text names the author's lines. Raises CompileError with the author's file and line."""
    options = (f"--gpu-architecture=compute_{target.sm}{target.feature}", *OPTIONS, *kernel.options)
    unit = translation_unit(kernel)
    compiled = _compile(unit, (*options, "-lineinfo") if lines else options)
    if isinstance(compiled, _Refusal):
        raise _explained(kernel, target, compiled.log)
    text = _named(_lowered(compiled, kernel), kernel)
    function = Function(
        kernel.name, parameters(kernel.signature()), _shared(text), max_threads=kernel.launch().block, kernel=str(kernel)
    )
    return text, function


def translation_unit(kernel: CudaSourceKernel) -> str:
    """The whole source that NVRTC sees."""
    launch = kernel.launch()
    parameters = ",\n    ".join(_declared(name, argument) for name, argument in kernel.signature().items())
    return "\n".join(
        [
            *(_constant(name, value) for name, value in kernel.parameters().items() if isinstance(value, int)),
            *_marked(kernel, kernel.preamble()),
            f'extern "C" __global__ void __launch_bounds__({launch.threads}) {kernel.name}(\n    {parameters})',
            "{",
            *_marked(kernel, kernel.source()),
            "}",
            "",
        ]
    )


def _constant(name: str, value: int) -> str:
    """As an enumerator: NVRTC would give memory to a constexpr variable."""
    if isinstance(value, bool):
        return f"enum : bool {{ {name} = {str(value).lower()} }};"
    return f"enum : {'int' if abs(value) < 1 << 31 else 'long long'} {{ {name} = {value} }};"


def _declared(name: str, argument: Argument) -> str:
    type = _C_TYPES.get(argument.dtype.name)
    if type is None:
        raise PtxGenError(f"{name}: {argument.dtype} has no C++ type here; there are {', '.join(_C_TYPES)}")
    if not isinstance(argument, Array):
        return f"const {type} {name}"
    return f"{'const ' if argument.direction == 'in' else ''}{type}* __restrict__ {name}"


def _marked(kernel: CudaSourceKernel, text: str) -> list[str]:
    """The text after a #line that says where it stands in the author's file."""
    if not text.strip():
        return []
    file, line = _place(kernel, text)
    escaped = file.replace("\\", "\\\\").replace('"', '\\"')
    return [f'#line {line} "{escaped}"', text]


def _place(kernel: CudaSourceKernel, text: str) -> tuple[str, int]:
    """The author's file and the line of it at which the text starts: where most of its lines are found (an f-string has filled
    some of them in). NAME.cu, line 1, for a text that stands in no file."""
    file = inspect.getsourcefile(type(kernel))
    numbers: dict[str, list[int]] = {}
    for number, line in enumerate(linecache.getlines(file) if file else (), 1):
        numbers.setdefault(line.strip(), []).append(number)
    votes = Counter(
        start - index
        for index, line in enumerate(text.splitlines())
        if line.strip() not in ("", "{", "}")
        for start in numbers.get(line.strip(), ())
    )
    best = max(votes.items(), key=lambda vote: (vote[1], -vote[0]), default=None)
    return (f"{kernel.name}.cu", 1) if best is None or file is None else (file, best[0])


@dataclass(frozen=True)
class _Refusal:
    log: str


@lru_cache(maxsize=256)
def _compile(unit: str, options: tuple[str, ...]) -> str | _Refusal:
    nvrtc = _library()
    _, program = nvrtc.nvrtcCreateProgram(unit.encode(), b"kernel.cu", 0, [], [])
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if int(status):
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            log = b" " * size
            nvrtc.nvrtcGetProgramLog(program, log)
            return _Refusal(log.rstrip(b"\0 ").decode(errors="replace"))
        _, size = nvrtc.nvrtcGetPTXSize(program)
        text: bytes = b" " * size
        nvrtc.nvrtcGetPTX(program, text)
        return text.rstrip(b"\0 ").decode("ascii")
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _library() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # loads the shared library
    except (ImportError, RuntimeError) as error:
        raise PtxGenError(f"cannot load NVRTC ({error}); install it with `{install('nvrtc')}`") from error
    return nvrtc


def _lowered(text: str, kernel: CudaSourceKernel) -> str:
    """The text with a PTX version that every supported driver loads: a newer NVRTC names its own newest version whatever it
    uses. An instruction that really is newer is then refused by the assembler."""
    version = re.search(r"^\.version (\d+)\.(\d+)$", text, re.MULTILINE)
    if version is None:
        raise PtxGenError(f"{kernel}: NVRTC gave no PTX text")
    named = (int(version[1]), int(version[2]))
    if named <= NEWEST_PTX:
        return text
    _log.info("%s: PTX version %d.%d of NVRTC lowered to %d.%d", kernel.name, *named, *NEWEST_PTX)
    return text[: version.start()] + f".version {NEWEST_PTX[0]}.{NEWEST_PTX[1]}" + text[version.end() :]


def _named(text: str, kernel: CudaSourceKernel) -> str:
    """The text with the signature's names for the entry's parameters, which NVRTC numbers."""
    names = list(kernel.signature())
    return re.sub(rf"\b{kernel.name}_param_(\d+)\b", lambda number: names[int(number[1])], text)


def _shared(text: str) -> list[SharedArray]:
    arrays = re.findall(r"\.shared(?: \.align (\d+))? \.(\w+) ([\w$]+)(?:\[(\d+)\])?;", text)
    return [
        SharedArray(name, U8, BY_NAME[type].bytes * int(count or 1), int(align or BY_NAME[type].bytes))
        for align, type, name, count in arrays
    ]


def _explained(kernel: CudaSourceKernel, target: Target, log: str) -> CompileError:
    """NVRTC's complaints, at the author's lines: `file(12): error: ...`."""
    complaints = [
        (Location(file, int(line), linecache.getline(file, int(line)).strip()), message)
        for file, line, message in re.findall(r"^(.+?)\((\d+)\): (?:catastrophic )?error(?: #\d+)?: (.*)$", log, re.MULTILINE)
    ]
    if not complaints:
        return CompileError(f"{kernel} does not compile for {target}:\n{log.strip()}", None, log)
    where, first = complaints[0]
    more = "\n".join(f"{message}\n  {place}" for place, message in complaints[1:])
    return CompileError(f"{kernel} does not compile for {target}: {first}", where, log, more)
