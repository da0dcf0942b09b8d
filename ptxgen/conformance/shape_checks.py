"""The checks of one kernel, that is of a type with its shape. Each raises an error that says what is wrong."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from ptxgen.arrays import numpy_dtype
from ptxgen.conformance import refills
from ptxgen.conformance.dependent_launch import violations
from ptxgen.conformance.execution import compare, emitted, emulate, inputs, written, written_again
from ptxgen.dsl.arguments import Argument, Array, Scalar, is_whole
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.launch_config import DEPENDENT_SM
from ptxgen.dsl.memory import LARGEST_ARRAY
from ptxgen.dsl.parts import part_parameters
from ptxgen.errors import Nonconformity
from ptxgen.isa.effects import Effect
from ptxgen.target import ALL, MAX_BLOCK, MAX_GRID, MAX_THREADS, Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.machine_code import faults
from ptxgen.toolchain.module import Emitted, emit
from ptxgen.types import U32

LARGEST_ALIGN = 256  # what cuMemAlloc gives
SHOWN = 3  # findings of the sanitiser in a message


def signature(kernel: KernelType) -> None:
    """The description is right in itself: names, arrays, bounds, geometry, work; equal types are equal, inputs repeatable."""
    if not is_dataclass(kernel) or replace(kernel) != kernel or hash(replace(kernel)) != hash(kernel):
        raise Nonconformity(f"{kernel} is not equal to a copy of itself: a kernel type is a frozen dataclass of plain values")
    if not re.fullmatch(r"[A-Za-z]\w*", kernel.name, re.ASCII):
        raise Nonconformity(f"{kernel.name!r} cannot be the name of a PTX entry; letters, digits and _ are allowed")
    arguments = kernel.signature()
    if kernel.signature() != arguments:
        raise Nonconformity("signature() gives another result when called again")
    for name, argument in arguments.items():
        _argument(name, argument)
    if not written(kernel):
        raise Nonconformity("the kernel writes none of its arguments")
    _geometry(kernel)
    work = kernel.work()
    if work.flops < 0 or work.bytes <= 0:
        raise Nonconformity(f"work() says {work}; a launch moves at least one byte")
    first, again = inputs(kernel), inputs(kernel)
    for name, value in first.items():
        if np.asarray(value).tobytes() != np.asarray(again[name]).tobytes():
            raise Nonconformity(f"inputs() gives another {name} for the same seed: take all that is random from `rng`")


def _argument(name: str, argument: Argument) -> None:
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or keyword.iskeyword(name):
        raise Nonconformity(f"an argument is called {name!r}; it must be an ASCII identifier that is no Python keyword")
    numpy_dtype(argument.dtype)
    if not isinstance(argument, Array):
        if argument.low is not None and argument.high is not None and argument.low > argument.high:
            raise Nonconformity(f"{name} must be from {argument.low} to {argument.high}, which no value is")
        return
    align = argument.align
    if align < argument.dtype.bytes or align > LARGEST_ALIGN or align & (align - 1):
        raise Nonconformity(
            f"{name} ({argument}) is aligned to {align}; a power of two from its element to {LARGEST_ALIGN} is right"
        )
    if argument.size >= LARGEST_ARRAY:
        raise Nonconformity(f"{name} ({argument}) has {argument.size} elements; the limit is {LARGEST_ARRAY - 1}")


def _geometry(kernel: KernelType) -> None:
    launch = kernel.launch()
    for what, sizes, limits in (("grid", launch.grid, MAX_GRID), ("block", launch.block, MAX_BLOCK)):
        if not all(is_whole(size) and 1 <= size <= limit for size, limit in zip(sizes, limits, strict=True)):
            raise Nonconformity(f"{what} {sizes} is out of range; whole numbers from (1, 1, 1) to {limits} are allowed")
    if launch.threads > MAX_THREADS:
        raise Nonconformity(f"block {launch.block} has {launch.threads} threads; at most {MAX_THREADS} are allowed")
    if launch.ranks > 1 and (not isinstance(rank := kernel.signature().get("rank"), Scalar) or rank.dtype != U32):
        raise Nonconformity(f"each of {launch.ranks} launches needs to know which it is: the scalar rank, u32, in signature()")
    if not is_whole(launch.dynamic_shared) or launch.dynamic_shared < 0:
        raise Nonconformity(f"a launch cannot ask for {launch.dynamic_shared} bytes of shared memory")


def text(kernel: KernelType) -> None:
    """The text passes the verifier, is ASCII, has the signature's parameters, and is the same bytes when written again; bulk
    copies follow what is read where they write; that of a dependent kernel waits in time, in its dependent form, too."""
    target = targets(kernel)[0]
    first, again = emitted(kernel, target, lines=True), written_again(kernel, target)
    if not first.text.isascii():
        raise Nonconformity("the text is not ASCII")
    if first.text != again.text:
        differ = next(
            (pair for pair in zip(first.text.splitlines(), again.text.splitlines(), strict=False) if pair[0] != pair[1]),
            ("", "the texts have different lengths"),
        )
        raise Nonconformity(f"the text differs when emitted again: {differ[0].strip()} | {differ[1].strip()}")
    if first.entry != kernel.name:
        raise Nonconformity(f"the entry is called {first.entry}, the kernel {kernel.name}")
    parameters = [parameter["name"] for parameter in first.manifest()["parameters"]]
    if parameters != list(kernel.signature()):
        raise Nonconformity(f"the entry takes {', '.join(parameters)}; the signature has {', '.join(kernel.signature())}")
    for target in _different(kernel):
        _refills_in_order(emitted(kernel, target, lines=True))
    if kernel.launch().dependent:
        for target in _different(kernel):
            _check_dependent(kernel, emitted(kernel, target, lines=True).text)
    elif kernel.waits_inside:  # others wait before all else
        for target in targets(kernel):
            if target.sm >= DEPENDENT_SM:
                _check_dependent(kernel, emit(kernel, target, lines=True, dependent=True).text)


def _refills_in_order(text: Emitted) -> None:
    ops = text.function.ops  # none of CUDA C++
    violated = (
        refills.violations(text.text, text.entry) if not ops or any(o.row.effect is Effect.BULK_COPY for o in ops) else []
    )
    if violated:
        raise Nonconformity(
            "a bulk copy overwrites what was read, with nothing between that orders the two: let the readers meet, and execute "
            'k.fence_proxy(proxy="async.shared::cta") before the copy:\n' + "\n".join(violated[:SHOWN])
        )


def _check_dependent(kernel: KernelType, text: str) -> None:
    violated = violations(text, kernel.name, kernel.signature())
    if violated:
        raise Nonconformity(
            "launch() makes the kernel dependent, or waits_inside its dependent form, while the one before it may still run; "
            'so let it wait first (k.griddepcontrol(action="wait"), or k.wait_for_launch_before() inside), or declare constant '
            "what no launch before writes (read(..., constant=True)), and settled what only this one writes, after its wait "
            "(update(..., settled=True)):\n" + "\n".join(violated[:SHOWN])
        )


def assembly(kernel: KernelType) -> None:
    """It assembles for every target, and nothing is wrong with the machine code (see machine_code.py)."""
    for target in targets(kernel):
        of_target = faults(assemble(emitted(kernel, target).text, target), kernel.launch().threads, kernel.most_code)
        if of_target:
            raise Nonconformity("\n".join(f"on {target}: {fault}" for fault in of_target))


def emulator(kernel: KernelType) -> None:
    """On the emulator it is clean under the sanitiser, writes what it may and no more, is right, and gives the same bits with
    warps and blocks in another order, with arrays at other places. Where the text depends on the target, each text does."""
    arguments = inputs(kernel)
    for target in _different(kernel):
        results = _clean(kernel, arguments, target, seed=1, tight=True)
        compare(kernel, arguments, results)
        again = _clean(kernel, arguments, target, seed=2, tight=False)
        for name, values in results.items():
            if values.tobytes() != again[name].tobytes():
                raise Nonconformity(f"the bits of {name} depend on the order of warps and blocks, or on where the arrays are")


def _clean(kernel: KernelType, arguments: dict[str, Any], target: Target, *, seed: int, tight: bool) -> dict[str, Any]:
    results, findings = emulate(kernel, arguments, seed=seed, target=target, tight=tight)
    if findings:
        more = f"\nand {len(findings) - SHOWN} more" if len(findings) > SHOWN else ""
        raise Nonconformity("\n".join(map(str, findings[:SHOWN])) + more)
    return results


def targets(kernel: KernelType) -> tuple[Target, ...]:
    """The targets that the kernel is meant for."""
    meant = kernel.targets()
    if not meant:
        raise Nonconformity(f"least_sm is {kernel.least_sm}; the targets are {', '.join(map(str, ALL))}")
    return meant


def _different(kernel: KernelType) -> Iterator[Target]:
    """A target for each different text, not counting its header."""
    seen: set[str] = set()
    for target in targets(kernel):
        body = emitted(kernel, target).text.partition(".address_size")[2]
        if body not in seen:
            seen.add(body)
            yield target


SHAPE_CHECKS: dict[str, Callable[[KernelType], None]] = {
    "signature": signature,
    "text": text,
    "assembly": assembly,
    "emulator": emulator,
}


def set_fields(kernel: KernelType) -> dict[str, Any]:
    """The fields that make the shape, those of parts included, with their values."""
    own = {f.name: getattr(kernel, f.name) for f in fields(kernel) if f.init}
    return own | part_parameters(kernel)
