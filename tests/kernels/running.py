"""How a test runs a kernel type: its own random arguments, on the emulator, against its own reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.buffers import numpy_dtype
from ptxgen import emulator
from ptxgen.kernels.kernel_type import Array, KernelType
from ptxgen.module import emit


def inputs(kernel: KernelType, seed: int = 0) -> dict[str, Any]:
    """The kernel's own random arguments: contiguous arrays and NumPy scalars of the types in its signature."""
    given = kernel.inputs(np.random.default_rng(seed))
    typed: dict[str, Any] = {}
    for name, argument in kernel.signature().items():
        dtype = numpy_dtype(argument.dtype)
        if isinstance(argument, Array):
            array = np.ascontiguousarray(given[name]).reshape(argument.shape)
            assert array.dtype == dtype, f"{kernel}: {name} is {array.dtype}, the signature says {argument}"
            typed[name] = array
        else:
            typed[name] = dtype.type(given[name])
    return typed


def emulate(
    kernel: KernelType, arguments: Mapping[str, Any], *, seed: int | None = None, sanitize: bool = True
) -> tuple[dict[str, NDArray[Any]], list[emulator.Finding]]:  # fmt: skip
    """Run the kernel's text on the emulator on copies of the arguments, an `out` as memory that nothing wrote yet. Returns what
    is in every `out` and `inout` afterwards, and the sanitiser's findings."""
    emitted = emit(kernel, lines=True)
    launch = kernel.launch()
    passed: list[Any] = []
    results: dict[str, NDArray[Any]] = {}
    for name, argument in kernel.signature().items():
        value = arguments[name]
        if isinstance(argument, Array) and argument.direction != "in":
            value = results[name] = value.copy()
        fresh = isinstance(argument, Array) and argument.direction == "out"
        passed.append(emulator.uninitialised(value) if fresh else value)
    findings = emulator.run(emitted.text, emitted.entry, launch.grid, launch.block, passed, sanitize=sanitize, seed=seed)
    return results, findings


def assert_matches_reference(kernel: KernelType, arguments: Mapping[str, Any], results: Mapping[str, NDArray[Any]]) -> None:
    """Every `out` and `inout` is within the kernel's own tolerance of its own reference."""
    expected = kernel.reference(**arguments)
    allowed = kernel.tolerance(**arguments)
    written = {n for n, a in kernel.signature().items() if isinstance(a, Array) and a.direction != "in"}
    assert set(expected) == written, f"{kernel}: the reference gives {sorted(expected)}, the kernel writes {sorted(written)}"
    for name, wanted in expected.items():
        got = results[name].astype(np.float64).reshape(np.shape(wanted))
        wanted = np.asarray(wanted, np.float64)
        wrong = ~((np.abs(got - wanted) <= allowed[name]) | (got == wanted) | (np.isnan(got) & np.isnan(wanted)))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            bound = np.broadcast_to(allowed[name], wanted.shape)[at]
            raise AssertionError(
                f"{kernel}: {wrong.sum()} of {wrong.size} values of {name} are off; first {name}{list(at)}, is {got[at]!r}, "
                f"the reference {wanted[at]!r}, allowed +-{bound:.3g}"
            )
