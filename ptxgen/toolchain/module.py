"""Functions -> the text of a PTX module, and kernel types -> `Emitted`. What a function holds is decided in builder.py, whether
it is right in verify.py, how the module looks in templates/module.ptx.j2."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from ptxgen.dsl import stamps
from ptxgen.dsl.arguments import Argument, Array
from ptxgen.dsl.build import build
from ptxgen.dsl.ir import (
    DYNAMIC_SHARED,
    PRINT_ARGUMENTS,
    PRINT_FORMAT,
    PRINT_STATUS,
    PRINT_VALUES,
    ConstantArray,
    Function,
    Label,
    Op,
    Parameter,
    Remark,
)
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen.isa.printf import VPRINTF
from ptxgen.target import Target
from ptxgen.toolchain.cuda_source import CudaSourceKernel, compile_kernel
from ptxgen.verify.verify import verify

if TYPE_CHECKING:
    from jinja2 import Template


ARRAY_LINE: Final = 16
"""Numbers of a constant array in a line of the text."""


@dataclass(frozen=True)
class Emitted:
    """A kernel as PTX text for one target. `shared_bytes` is the static shared memory of a block, in bytes; `function` has no
    instructions if the text was compiled from CUDA C++."""

    kernel: KernelType
    target: Target
    entry: str
    text: str
    shared_bytes: int
    function: Function

    @property
    def sha256(self) -> str:
        """The hash of the text, in hexadecimal: what caches key on."""
        return hashlib.sha256(self.text.encode("ascii")).hexdigest()

    @property
    def ptx_version(self) -> str:
        """The PTX version that the text names: `8.0`."""
        version = re.search(r"^\.version (\S+)$", self.text, re.MULTILINE)
        if version is None:
            raise PtxGenError(f"the text of {self.entry} names no PTX version")
        return version[1]

    def manifest(self) -> dict[str, Any]:
        """What another program needs to load and launch the text, ready for JSON. Sizes in bytes, grid in blocks, block in
        threads."""
        launch = self.kernel.launch()
        signature = {**self.kernel.signature(), stamps.NAME: stamps.STAMPS}
        return {
            "kernel": self.kernel.name,
            "shape": {name: _plain(value) for name, value in self.kernel.parameters().items()},
            "entry": self.entry,
            "parameters": [_parameter_facts(parameter, signature[parameter.name]) for parameter in self.function.parameters],
            "grid": list(launch.grid),
            "block": list(launch.block),
            "shared_bytes": self.shared_bytes,
            "dynamic_shared_bytes": launch.dynamic_shared,
            "cooperative": launch.cooperative,
            "ranks": launch.ranks,
            "target": str(self.target),
            "ptx_version": self.ptx_version,
            "sha256": self.sha256,
        }


def emit(
    kernel: KernelType, target: Target | None = None, *, lines: bool = False, dependent: bool = False, stamped: bool = False
) -> Emitted:
    """Write, verify and print a kernel. The same type gives the same bytes. With `lines` the text names the author's file and
    line of every instruction (`.loc`), for assemblers, debuggers and the sanitiser. dependent: as in `build`; from sm_90 on.
    stamped: as in `build`.

    Without a target it is the oldest that the kernel is for (KernelType.least_target). A kernel that is for one target alone is
    written for that (KernelType.target_for), which `target` of the result names.
    Raises AuthorError (with the author's line) for whatever the builder, the verifier or the CUDA C++ compiler finds, and
    ArgumentError for a target that the kernel is not for, and for a dependent or a stamped one in CUDA C++."""
    target = kernel.target_for(target)
    if isinstance(kernel, CudaSourceKernel):
        if dependent:
            raise ArgumentError(
                f"{kernel.name} is CUDA C++, which is dependent if launch() says so; leave dependent launches off"
            )
        if stamped:
            raise ArgumentError(f"{kernel.name} is CUDA C++, into which no stamps are written; time it from outside, by events")
        text, function = compile_kernel(kernel, target, lines=lines)
        return Emitted(kernel, target, function.name, text, function.shared_bytes, function)
    return printed(kernel, verified(kernel, target, dependent=dependent, stamped=stamped), target, lines=lines)


def verified(kernel: KernelType, target: Target, *, dependent: bool = False, stamped: bool = False) -> Function:
    """What `emit` prints: the kernel written for a target, and nothing wrong with it."""
    function = build(kernel, target, dependent=dependent, stamped=stamped)
    verify(function, target)
    return function


def printed(kernel: KernelType, function: Function, target: Target, *, lines: bool = False) -> Emitted:
    """What `emit` returns, of a kernel that is written and verified."""
    text = module_text([function], target, lines=lines)
    return Emitted(kernel, target, function.name, text, function.shared_bytes, function)


def module_text(functions: Sequence[Function], target: Target, *, lines: bool = False) -> str:
    """A module with these entries, in this order. The functions should have passed `verify`."""
    names = [function.name for function in functions]
    for name in names:
        if names.count(name) > 1:
            raise PtxGenError(f"a module holds each entry once, {name} is there {names.count(name)} times")
    files: dict[str, int] = {}
    if lines:
        for function in functions:
            for op in function.ops:
                files.setdefault(op.where.file, len(files) + 1)
    major, minor = ptx_version(functions, target)
    text = _template().render(
        version=f"{major}.{minor}",
        target=target,
        files=files,
        dynamic_shared=DYNAMIC_SHARED,
        dynamic_align=max((function.dynamic_align for function in functions), default=0),
        vprintf=VPRINTF,
        formats=[
            (name, list(format.encode("ascii") + b"\0"))
            for function in functions
            for name, format in zip(function.format_names, function.formats, strict=True)
        ],
        constants=list(_constants(functions)),
        functions=[
            {
                "name": function.name,
                "notes": list(_notes(function)),
                "parameters": [_declared(parameter) for parameter in function.parameters],
                "max_threads": function.max_threads,
                "resident": function.resident,
                "most_registers": function.most_registers,
                "declarations": list(_declarations(function)),
                "body": "\n".join(_body(function, files)),
            }
            for function in functions
        ],
    )
    if not text.isascii():
        line = next(line for line in text.splitlines() if not line.isascii())
        raise PtxGenError(f"PTX is ASCII only, this line is not: {line.strip()}")
    return text


def ptx_version(functions: Sequence[Function], target: Target) -> tuple[int, int]:
    """The least PTX version that has the target and everything that the functions use."""
    return max((target.first_ptx, *(op.ptx for function in functions for op in function.ops)))


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # late: `import ptxgen` must stay quick

    environment = Environment(
        loader=PackageLoader("ptxgen.toolchain"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # PTX is not HTML
    )
    return environment.get_template("module.ptx.j2")


def _declared(parameter: Parameter) -> str:
    pointer = f" .ptr .global .align {parameter.align}" if parameter.align else ""
    return f".{parameter.type.register}{pointer} {parameter.name}"


def _constants(functions: Sequence[Function]) -> Iterator[str]:
    """The lines of the constant arrays, each once, however many functions read it."""
    arrays: dict[str, ConstantArray] = {}
    for array in (array for function in functions for array in function.constants.values()):
        if arrays.setdefault(array.name, array) != array:
            raise PtxGenError(f"a module holds each array once, two functions have another {array.name}")
    for array in arrays.values():
        digits = array.type.bits // 4
        yield f".global .align {array.align} .{array.type} {array.name}[{len(array.values)}] = {{"
        for first in range(0, len(array.values), ARRAY_LINE):
            line = ", ".join(f"0x{value:0{digits}x}" for value in array.values[first : first + ARRAY_LINE])
            yield f"    {line}{',' if first + ARRAY_LINE < len(array.values) else ''}"
        yield "};"


def _notes(function: Function) -> Iterator[str]:
    """What the text says of a function in comments. It names all that a launch depends on, so one text is launched one way."""
    yield from (line for line in (function.summary, function.kernel) if line)
    yield from (f"{parameter.name}: {parameter.note or parameter.type}" for parameter in function.parameters)
    if function.dynamic_shared:
        yield f"{DYNAMIC_SHARED}: {function.dynamic_shared} bytes, which a launch asks for"
    if function.cooperative:
        yield "cooperative: the blocks wait for each other, so a launch holds all of them at once"
    if function.ranks > 1:
        yield f"ranks: {function.ranks} launches on as many devices wait for each other, so they run at the same time"


def _declarations(function: Function) -> Iterator[str]:
    """Registers as ranges of their exact type, so that the assembler checks types too, then the shared arrays."""
    counts: dict[tuple[str, str], int] = {}
    for register in {register.name: register for register in function.registers}.values():
        prefix, number = _split(register.name)
        key = (register.type.register, prefix)
        counts[key] = max(counts.get(key, 0), number + 1)
    for (type, prefix), count in sorted(counts.items()):
        yield f".reg .{type} {prefix}<{count}>;"
    for array in function.shared:
        yield f".shared .align {array.align} .b8 {array.name}[{array.bytes}];"
    if function.formats:
        yield f".local .align 8 .b8 {PRINT_ARGUMENTS}[{max(function.print_bytes, 8)}];"
        yield from (f".param .b64 {name};" for name in (PRINT_FORMAT, PRINT_VALUES))
        yield f".param .b32 {PRINT_STATUS};"


@lru_cache(maxsize=1 << 14)
def _split(name: str) -> tuple[str, int]:
    parts = re.fullmatch(r"(%[a-z_]+)(\d+)", name)
    if not parts:
        raise PtxGenError(f"a register is named %letters and a number, got {name!r}")
    return parts[1], int(parts[2])


def _body(function: Function, files: dict[str, int]) -> Iterator[str]:
    """The lines of the body. A `.loc` stands wherever the author's line changes, if `files` numbers the files."""
    here: tuple[str, int] | None = None
    for line in function.body:
        if isinstance(line, Label):
            yield f"{line.name}:"
        elif isinstance(line, Remark):
            yield from (f"    // {text}" for text in line.text.splitlines())
        elif isinstance(line, Op):
            if files and (line.where.file, line.where.line) != here:
                here = (line.where.file, line.where.line)
                yield f"    .loc {files[here[0]]} {here[1]} 0"
            yield f"    {line}"


def _parameter_facts(parameter: Parameter, argument: Argument) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": parameter.name, "ptx_type": parameter.type.register, "dtype": argument.dtype.name}
    if isinstance(argument, Array):
        shape = list(argument.shape)
        return {**facts, "kind": "array", "shape": shape, "direction": argument.direction, "align": argument.align}
    return {**facts, "kind": "scalar", "low": argument.low, "high": argument.high}


def _plain(value: Any) -> Any:
    """A field of a kernel type as JSON has it: numbers, strings and None as they are, anything else by its name."""
    return value if isinstance(value, int | float | str | None) else str(value)
