"""How a kernel type is run for a test: its own random arguments, on the emulator, against its own reference."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen import emulator
from ptxgen.arrays import numpy_dtype
from ptxgen.dsl.arguments import Argument, Array
from ptxgen.dsl.build import build
from ptxgen.dsl.ir import Function
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.emulator.layout import REDZONE
from ptxgen.errors import Nonconformity
from ptxgen.printable import literal
from ptxgen.target import Target
from ptxgen.toolchain.cuda_source import CudaSourceKernel
from ptxgen.toolchain.module import Emitted, emit, printed, verified

Arguments = Mapping[str, Any]
Arrays = dict[str, NDArray[Any]]

CANARY = 0xA5
LAUNCH_SECONDS = 120.0
"""How long a case may run: sample shapes are those of models, and many kernels are checked at once."""


@lru_cache(maxsize=32)
def emitted(kernel: KernelType, target: Target | None = None, *, lines: bool = False) -> Emitted:
    """As `ptxgen.toolchain.module.emit`, once for all checks of a kernel, and written once for all targets where the author did
    not ask which it is."""
    target = kernel.target_for(target)
    if isinstance(kernel, CudaSourceKernel):
        return emit(kernel, target, lines=lines)
    return printed(kernel, _function(kernel, target), target, lines=lines)


def written_again(kernel: KernelType, target: Target) -> Emitted:
    """`emitted` with its lines, from the beginning. It is not verified again: what has the same text is as right."""
    target = kernel.target_for(target)
    if isinstance(kernel, CudaSourceKernel):
        return emit(kernel, target, lines=True)
    return printed(kernel, build(kernel, target), target, lines=True)


@lru_cache(maxsize=32)
def _function(kernel: KernelType, target: Target) -> Function:
    """The kernel for a target. What is right for an older GPU, and does not depend on which it is, is the same for this one:
    the verifier only asks whether the target is new enough."""
    if kernel.least_sm < target.sm and (older := kernel.targets()[0]).sm < target.sm:
        function = _function(kernel, older)
        if not function.target_matters:
            return function
    return verified(kernel, target)


def inputs(kernel: KernelType, seed: int = 0) -> dict[str, Any]:
    """The kernel's own random arguments: contiguous arrays and NumPy scalars of the types in its signature; of a kernel of
    several ranks, arrays of what each rank has. Raises Nonconformity if they are not what the signature says."""
    arguments = kernel.inputs(np.random.default_rng(seed))
    signature, ranks = kernel.signature(), kernel.launch().ranks
    if set(arguments) != set(signature):
        raise Nonconformity(f"inputs() gives {', '.join(arguments)}; the signature has {', '.join(signature)}")
    return {name: _typed(name, argument, arguments[name], ranks) for name, argument in signature.items()}


def _typed(name: str, argument: Argument, value: Any, ranks: int) -> Any:
    dtype = numpy_dtype(argument.dtype)
    if isinstance(argument, Array) or ranks > 1:
        shape = argument.shape if isinstance(argument, Array) else ()
        shape = (ranks, *shape) if ranks > 1 else shape
        if not isinstance(value, np.ndarray) or value.dtype != dtype or value.size != prod(shape):
            got = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
            of = f" for each of {ranks} ranks" if ranks > 1 else ""
            raise Nonconformity(f"inputs() gives {got} for {name}, the signature says {argument}{of}: a NumPy array of {dtype}")
        typed = np.ascontiguousarray(value).reshape(shape)
        if isinstance(argument, Array):
            return typed
        numbers = [float(one) for one in typed]
    else:
        try:
            typed = dtype.type(value)
        except (OverflowError, TypeError, ValueError) as error:
            raise Nonconformity(f"inputs() gives {literal(value)} for {name}, which {argument.dtype} cannot hold") from error
        numbers = [float(typed)]
    low = -np.inf if argument.low is None else argument.low
    high = np.inf if argument.high is None else argument.high
    if not all(low <= number <= high for number in numbers):
        raise Nonconformity(f"inputs() gives {literal(value)} for {name}; its own signature allows {low} to {high}")
    return typed


def written(kernel: KernelType) -> tuple[str, ...]:
    """The names of the `out` and `inout` arguments."""
    return tuple(n for n, a in kernel.signature().items() if isinstance(a, Array) and a.direction != "in")


def emulate(
    kernel: KernelType,
    arguments: Arguments,
    *,
    seed: int | None = None,
    sanitize: bool = True,
    target: Target | None = None,
    tight: bool = False,
) -> tuple[Arrays, list[emulator.Finding]]:
    """Run the kernel's text, for its oldest target unless one is named, on copies of the arguments, on as many devices as it
    has ranks. Returns what is in every `out` and `inout` afterwards, and the sanitiser's findings.

    An `out` counts as memory that nothing wrote yet, an `in` may not be written; a dependent kernel is taken to have
    done so. `tight`: every array is aligned to what the
    signature promises and to no more, and stands between canaries that must be there afterwards. Raises Nonconformity if they
    are not."""
    text = emitted(kernel, target, lines=True)
    launch, signature = kernel.launch(), kernel.signature()
    several = launch.ranks > 1
    given = (
        [{name: value[rank] for name, value in arguments.items()} for rank in range(launch.ranks)] if several else [arguments]
    )
    copies: list[Arrays] = []
    whole: list[Arrays] = []
    for one in given:
        pairs = {n: placed(one[n], a.align, tight=tight) for n, a in signature.items() if isinstance(a, Array)}
        copies.append({name: copy for name, (copy, _) in pairs.items()})
        whole.append({name: memory for name, (_, memory) in pairs.items()})
    passed: list[list[Any]] = [[] for _ in given]
    for rank, (name, argument) in product(range(launch.ranks), signature.items()):
        if not isinstance(argument, Array):
            passed[rank].append(given[rank][name])
        elif argument.addresses_of:
            passed[rank].append(emulator.Addresses([of_rank[argument.addresses_of] for of_rank in copies]))
        else:
            copy = copies[rank][name]
            copy.flags.writeable = argument.direction != "in"
            passed[rank].append(emulator.Marked(copy, argument.direction != "out", argument.constant, argument.settled))
    run = partial(
        emulator.run_together if several else emulator.run,
        text.text,
        text.entry,
        launch.grid,
        launch.block,
        shared=launch.dynamic_shared,
        sanitize=sanitize,
        seed=seed,
        dependent=launch.dependent,
        seconds=LAUNCH_SECONDS,
        budget=emulator.usual_budget(sanitize=sanitize),
        prints=sys.stderr.write,  # stdout has the report
    )
    findings = run(passed) if several else run(passed[0], cooperative=launch.cooperative)
    for one, held in zip(given, whole, strict=True):
        for name, memory in held.items():
            size = one[name].nbytes
            start = _start(memory, signature[name].align, tight)  # type: ignore[union-attr]  # arrays only
            if (memory[:start] != CANARY).any() or (memory[start + size :] != CANARY).any():
                raise Nonconformity(f"the kernel wrote next to {name}, outside its {size} bytes")
    names = written(kernel)
    return {name: np.stack([of[name] for of in copies]) if several else copies[0][name] for name in names}, findings


def placed(array: NDArray[Any], align: int, *, tight: bool) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """A copy of an array in memory of its own, and that memory with the canaries. `tight`: at an odd multiple of `align`."""
    memory = np.full(array.nbytes + 2 * REDZONE + 4 * align, CANARY, np.uint8)
    start = _start(memory, align, tight)
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy, memory


def _start(memory: NDArray[np.uint8], align: int, tight: bool) -> int:
    address = memory.ctypes.data + REDZONE
    start = REDZONE + (-address) % (2 * align)
    return start + align if tight else start


def compare(kernel: KernelType, arguments: Arguments, results: Arguments) -> None:
    """Every `out` and `inout` is within the kernel's own tolerance of its own reference, and what is zeros before a launch is
    so after it; Nonconformity says where it is not. Neither `reference` nor `tolerance` may change the arguments: they see
    read-only arrays."""
    seen = {name: _read_only(value) for name, value in arguments.items()}
    expected, allowed = kernel.reference(**seen), kernel.tolerance(**seen)
    names = written(kernel)
    for method, described in (("reference", expected), ("tolerance", allowed)):
        if set(described) != set(names):
            raise Nonconformity(
                f"{method}() gives {', '.join(sorted(described))}; the kernel writes {', '.join(sorted(names))}"
            )
    for name in names:
        deviation(name, results[name], expected[name], allowed[name])
    for name, argument in kernel.signature().items():
        if isinstance(argument, Array) and argument.zeros:
            for who, values in (("inputs() gives", arguments[name]), ("a launch leaves", results[name])):
                if np.any(values):
                    raise Nonconformity(f"{name} is declared to be zeros before a launch and after it; {who} other numbers")


def deviation(name: str, got: NDArray[Any], expected: Any, allowed: Any) -> None:
    """Raise Nonconformity unless |got - expected| <= allowed everywhere; equal infinities and NaN are right, too."""
    expected = np.asarray(expected, np.float64)
    got = got.astype(np.float64).reshape(expected.shape)
    bound = np.broadcast_to(np.asarray(allowed, np.float64), expected.shape)
    if not (bound >= 0).all():
        raise Nonconformity(f"the tolerance of {name} is {bound[~(bound >= 0)][0]} somewhere; it must be 0 or more")
    with np.errstate(invalid="ignore"):
        off = np.abs(got - expected)
    wrong = ~((off <= bound) | (got == expected) | (np.isnan(got) & np.isnan(expected)))
    if wrong.any():
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise Nonconformity(
            f"{wrong.sum()} of {wrong.size} values of {name} are off by up to {np.nanmax(off[wrong], initial=0.0):.3g}; first "
            f"{name}{list(first)}: is {literal(got[first])}, the reference {literal(expected[first])}, "
            f"allowed +-{bound[first]:.3g}"
        )


def _read_only(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view
