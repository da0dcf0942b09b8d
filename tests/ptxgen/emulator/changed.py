"""Kernels of several ranks whose text was changed, run on the emulator. No test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.conformance.execution import emitted, inputs
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.emulator import Addresses, Finding, Marked, run_together


def run_changed(
    kernel: KernelType, change: Callable[[str], str], seed: int | None = None
) -> tuple[list[Finding], Mapping[str, Any], dict[str, NDArray[Any]]]:
    """What is found, its arguments, and what it leaves on each rank."""
    signature, arguments, launch = kernel.signature(), inputs(kernel), kernel.launch()
    copies = [{name: value[rank].copy() for name, value in arguments.items()} for rank in range(launch.ranks)]

    def passed(rank: int, name: str) -> Any:
        argument = signature[name]
        if not isinstance(argument, Array):
            return arguments[name][rank]
        if argument.addresses_of:
            return Addresses([one[argument.addresses_of] for one in copies])
        return Marked(copies[rank][name], argument.direction != "out", argument.constant, argument.settled)

    args = [[passed(rank, name) for name in signature] for rank in range(launch.ranks)]
    found = run_together(change(emitted(kernel).text), kernel.name, launch.grid, launch.block, args, seed=seed)
    return found, arguments, {name: np.stack([one[name] for one in copies]) for name in copies[0]}
