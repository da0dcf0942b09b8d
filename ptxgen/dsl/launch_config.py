"""How a kernel is launched: its grid, its blocks, and what a multiprocessor must have for them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ptxgen.dsl.arguments import is_whole
from ptxgen.errors import ArgumentError
from ptxgen.target import DEPENDENT_SM as DEPENDENT_SM
from ptxgen.target import MAX_REGISTERS
from ptxgen.target import PIPELINE_SHARED as PIPELINE_SHARED


@dataclass(frozen=True)
class LaunchConfig:
    """How many blocks and threads. `resident` is how many blocks a multiprocessor must be able to hold at once by their
    registers: it bounds what the assembler may use. `dependent`: the kernel waits for the one before it by itself
    (griddepcontrol), so it may start before that has ended: before it has waited it may read constant and settled arguments
    and touch nothing else, and no thread ends without having waited (conformance/dependent_launch.py). `dynamic_shared`:
    bytes of shared memory of a block that the launch asks for (k.dynamic_shared), beside the arrays that the builder counts;
    for those that are too large to be static. `cooperative`: all blocks of the grid must be on the device at once, because they
    wait for each other (k.grid_barrier). `ranks`: so many launches, each on a device of its own, are one whole: they run at
    the same time and wait for each other (k.wait_for_peers). Each has the scalar `rank` (u32, from 0) that says which it is.
    `shared_room`: how many bytes of what it has for shared memory and for its L1 cache a multiprocessor should keep for
    shared memory, 0 for what the driver thinks: a hint, for kernels that follow each other. One that wants another share
    waits until the multiprocessor is empty. `most_registers`: of a thread, 0 for as many as `resident` blocks leave; so that
    blocks of the next kernel find some beside this one's. ArgumentError beyond 255."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    resident: int = 1
    dependent: bool = False
    dynamic_shared: int = 0
    cooperative: bool = False
    ranks: int = 1
    shared_room: int = 0
    most_registers: int = 0

    def __init__(
        self,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        resident: int = 1,
        dependent: bool = False,
        dynamic_shared: int = 0,
        cooperative: bool = False,
        ranks: int = 1,
        shared_room: int = 0,
        most_registers: int = 0,
    ) -> None:
        object.__setattr__(self, "grid", _three(grid))
        object.__setattr__(self, "block", _three(block))
        object.__setattr__(self, "resident", resident)
        object.__setattr__(self, "dependent", dependent)
        object.__setattr__(self, "dynamic_shared", dynamic_shared)
        object.__setattr__(self, "cooperative", cooperative)
        object.__setattr__(self, "ranks", ranks)
        object.__setattr__(self, "shared_room", shared_room)
        object.__setattr__(self, "most_registers", most_registers)
        if not (is_whole(most_registers) and 0 <= most_registers <= MAX_REGISTERS):  # assemblers pass over what cannot be
            raise ArgumentError(f"most_registers must be an integer, 0..{MAX_REGISTERS}, got {most_registers!r}")

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return prod(self.block)


def _three(size: int | tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = ((size,) if isinstance(size, int) else size) + (1,) * (2 if isinstance(size, int) else 3 - len(size))
    return x, y, z
