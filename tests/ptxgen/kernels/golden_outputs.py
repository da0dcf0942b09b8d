"""golden/outputs/NAME.npz: the inputs, the expected outputs and the tolerance of one small shape of each kernel, so that
neither a kernel nor its own reference can drift unseen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.arrays import numpy_dtype
from ptxgen.conformance.execution import deviation, emulate, inputs, written
from ptxgen.conformance.type_checks import array_bytes
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import Nonconformity
from ptxgen.kernels.accuracy import UNIT
from ptxgen.kernels.registry import KernelEntry
from tests.paths import GOLDEN

FOLDER = GOLDEN / "outputs"
ROOM = 4096  # bytes of the arrays of a shape

Arrays = dict[str, NDArray[Any]]


def chosen(entry: KernelEntry) -> KernelType:
    """The largest sample shape whose arrays have at most ROOM bytes, or the smallest of all."""
    fitting = [kernel for kernel in entry.cases() if array_bytes(kernel) <= ROOM]
    return max(fitting, key=array_bytes) if fitting else min(entry.cases(), key=array_bytes)


def record(kernel: KernelType) -> Arrays:
    """What the file holds: `in NAME`, `expected NAME` (floats as f32) and `tolerance NAME` (f32, rounded up)."""
    arguments = inputs(kernel)
    held: Arrays = {"kernel": np.array(str(kernel))}
    for name, argument in kernel.signature().items():
        if not (isinstance(argument, Array) and argument.direction == "out"):
            held[f"in {name}"] = np.asarray(arguments[name])
    expected, allowed = kernel.reference(**arguments), kernel.tolerance(**arguments)
    for name in written(kernel):
        value = np.asarray(expected[name])
        held[f"expected {name}"] = value.astype(np.float32) if value.dtype.kind == "f" else value
        held[f"tolerance {name}"] = _rounded_up(np.asarray(allowed[name]))
    return held


def save(path: Path, held: Mapping[str, NDArray[Any]]) -> None:
    """The same arrays give the same bytes: NumPy dates the members of the archive 1980."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **held)  # type: ignore[arg-type]  # names with a space are fine


def check(kernel: KernelType, held: Mapping[str, NDArray[Any]]) -> None:
    """Raise Nonconformity unless the reference still gives what is held, within tolerances that have not grown, and so does the
    kernel's text on the emulator (here without the sanitiser, as it runs in the executor)."""
    if str(held["kernel"]) != str(kernel):
        raise Nonconformity(f"the golden file is of {held['kernel']}, the small shape is now {kernel}")
    arguments = _arguments(kernel, held)
    expected, allowed = kernel.reference(**arguments), kernel.tolerance(**arguments)
    results, _ = emulate(kernel, arguments, sanitize=False)
    for name in written(kernel):
        wanted, bound = held[f"expected {name}"].astype(np.float64), held[f"tolerance {name}"].astype(np.float64)
        rounding = np.abs(wanted) * UNIT if held[f"expected {name}"].dtype.kind == "f" else 0.0
        slack = np.where(bound > 0, bound * 1e-3, 0.0)  # the order in which another BLAS adds in float64
        _same("reference", name, np.asarray(expected[name]), wanted, rounding + slack)
        grown = np.asarray(allowed[name], np.float64) - bound * (1 + 1e-6)
        if (grown > 0).any():
            raise Nonconformity(f"the tolerance of {name} grew, by up to {grown.max():.3g}")
        _same("kernel", name, results[name], wanted, bound + rounding)


def _same(who: str, name: str, got: NDArray[Any], wanted: NDArray[Any], allowed: Any) -> None:
    if got.size != wanted.size:
        raise Nonconformity(f"the {who} now gives {list(got.shape)} for {name}, the golden file has {list(wanted.shape)}")
    try:
        deviation(name, got, wanted, allowed)
    except Nonconformity as error:
        raise Nonconformity(f"the {who} is no longer what the golden file holds: {error}") from error


def _arguments(kernel: KernelType, held: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for name, argument in kernel.signature().items():
        if isinstance(argument, Array) and argument.direction == "out":
            ranks = kernel.launch().ranks
            shape = (ranks, *argument.shape) if ranks > 1 else argument.shape
            arguments[name] = np.zeros(shape, numpy_dtype(argument.dtype))
        elif f"in {name}" not in held:
            raise Nonconformity(f"the golden file has no input {name}")
        else:
            arguments[name] = held[f"in {name}"] if isinstance(argument, Array) else held[f"in {name}"][()]
    return arguments


def _rounded_up(values: NDArray[Any]) -> NDArray[np.float32]:
    nearest = values.astype(np.float32)
    return np.where(nearest < values, np.nextafter(nearest, np.float32(np.inf)), nearest)
