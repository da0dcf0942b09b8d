"""Launches every kernel of the catalogue that one GPU runs by itself once or more at small shapes, or those for many rows at
all of theirs, for compute-sanitizer to watch. No test.

python -m tests.gpu.every_kernel [many-rows]
"""

from __future__ import annotations

import sys

from executor.device import open_device
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.memory.buffers import GpuBuffer
from ptxgen.conformance.type_checks import array_bytes, smallest
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from tests.ptxgen.kernels.catalogue import ALONE, ENTRIES
from tests.ptxgen.kernels.running import inputs

SMALL = 30_000  # bytes of all arrays: two thirds of all cases
MANY_ROWS = (
    "batched_", "flash_attention", "gather_rows", "half_mma_", "mma_", "pack_halves", "paged_",
    "stationary_", "wgmma_",
)  # fmt: skip
"""How the names of kernels begin that a step of many rows is made of: tensor cores, shared memory filled ahead, page tables."""


def small_cases() -> list[KernelType]:
    """The sample shapes with few bytes, and the smallest of each kernel."""
    chosen = {case for case in ALONE if array_bytes(case) < SMALL} | {smallest(entry) for entry in ENTRIES}
    return [case for case in ALONE if case in chosen]


def many_row_cases() -> list[KernelType]:
    """All sample shapes of the kernels for many rows."""
    cases = (case for entry in ENTRIES if entry.name.startswith(MANY_ROWS) for case in entry.cases())
    return list(dict.fromkeys(cases))


def main() -> None:
    cases = many_row_cases() if "many-rows" in sys.argv[1:] else small_cases()
    with open_device("cuda:0") as device:
        launcher = Launcher(device, Modules(device, limit_bytes=0))
        for kernel in cases:
            given = inputs(kernel)
            for name, argument in kernel.signature().items():
                if not isinstance(argument, Array):
                    continue
                if argument.direction == "out" and not argument.partial:  # memory that nothing wrote
                    given[name] = GpuBuffer.empty(device, argument.dtype, argument.shape, name)
                else:
                    given[name] = GpuBuffer.from_numpy(device, given[name], argument.dtype, name)
            launcher(kernel, **given)
            device.synchronize()
            for value in given.values():
                if isinstance(value, GpuBuffer):
                    value.to_numpy()
                    value.free()
    sys.stdout.write(f"launched {len(cases)} kernels\n")


if __name__ == "__main__":
    main()
