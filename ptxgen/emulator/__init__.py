"""A CPU emulator of PTX: it reads text, compiles it with LLVM for 32 lanes at a time, and can check what a kernel does.

`run` launches a kernel on NumPy arrays; machine.py is the front for launching the same kernel many times.

Rounding, subnormals and NaN follow the PTX ISA bit for bit, in every direction. Not modelled: the bits of `.approx` functions
(the result is right, not the hardware's), weak memory order, caches and time (%globaltimer is the host's clock). Unless a
launch is cooperative, a block runs to its end before its worker takes the next, so blocks that wait for each other are an
endless loop. Without the sanitiser nothing checks addresses (but those of parameters by name): one outside every array is an
access of this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ptxgen.emulator.arguments import Marked, behind_addresses, pack
from ptxgen.emulator.launch_map import Touched
from ptxgen.emulator.launching import DEFAULT_SECONDS, NO_BUDGET, EmulationError, Launch, launch_together, usual_budget
from ptxgen.emulator.layout import REDZONE
from ptxgen.emulator.machine import Kernel, Module, compile_module
from ptxgen.emulator.memory_map import MemoryMap
from ptxgen.emulator.overlapping import launch_overlapping, overlapping_runs
from ptxgen.emulator.printing import Sink
from ptxgen.emulator.redzones import kept_apart
from ptxgen.emulator.sanitizer import Finding
from ptxgen.emulator.together import MOST_BLOCKS
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "DEFAULT_SECONDS",
    "MOST_BLOCKS",
    "REDZONE",
    "Addresses",
    "EmulationError",
    "Finding",
    "Kernel",
    "Launch",
    "Marked",
    "MemoryMap",
    "Module",
    "Touched",
    "compile_module",
    "constant",
    "launch_overlapping",
    "launch_together",
    "overlapping_runs",
    "run",
    "run_together",
    "settled",
    "uninitialised",
    "usual_budget",
]


@dataclass(frozen=True)
class Addresses:
    """An argument of `run_together`: a constant u64 array of the addresses that these arrays, arguments of the same run, have
    then."""

    arrays: Sequence[np.ndarray[Any, Any]]


def uninitialised(array: np.ndarray[Any, Any]) -> Marked:
    """Wrap an argument of `run`, so that the sanitiser reports reads of what the kernel did not write before."""
    return Marked(array, initialised=False)


def constant(array: np.ndarray[Any, Any]) -> Marked:
    """Wrap an argument of `run` that no launch before writes, so a dependent one may read it before it waits."""
    return Marked(array, constant=True)


def settled(array: np.ndarray[Any, Any]) -> Marked:
    """Wrap an argument of `run` that no launch before writes, but this one does: a dependent one may read it before it
    waits."""
    return Marked(array, settled=True)


def run(
    text: str,
    entry: str,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    args: Sequence[Any],
    shared: int = 0,
    sanitize: bool = True,
    seed: int | None = None,
    seconds: float | None = DEFAULT_SECONDS,
    budget: int | None = None,
    sources: bool = True,
    dependent: bool = False,
    cooperative: bool = False,
    prints: Sink | None = None,
) -> list[Finding]:
    """Run the kernel `entry` of PTX `text` on the CPU and return what the sanitiser found.

    `args`, in the order of the parameters, are what their declared types want. A parameter that is .u64, .s64 or .b64 takes a
    NumPy array (C-contiguous): global memory, written in place; one that is not writeable may only be read. A parameter that is
    an array (`.b8 s[12]`, a struct by value) takes bytes, a NumPy array or a NumPy scalar of that size, and copies it. Others
    take a NumPy scalar of their size, an integer or a float as the type is; .b types take either. `shared` is the
    dynamic shared memory in bytes. `seed` shuffles the order of blocks and warps, which a right kernel does not notice.
    `seconds` is how long the launch may take, None for as long as it takes; compiling does not count. `budget`: the backward
    jumps of a warp after which it counts as endless (2^24 if checked, else 2^28; where `seconds` is None or more than 10, no
    number). Without `sources`, findings name the author's line but do not read it in the file that the text, which may be a
    stranger's, names. `dependent`: the kernel may start while the one before it runs (programmatic dependent launch); what it
    touches before it waits is a finding, unless it is `constant`, or `settled` and read. `cooperative`: all blocks are there at
    once and may wait for each other. `prints` takes the text of each call of vprintf by a thread; stdout does unless it is
    given. Raises ParseError, ArgumentError, and without `sanitize` EmulationError for a kernel that cannot finish.
    """
    kernel = _module(text, sanitize, sources).kernel(entry)
    if kernel.image.data_bytes:  # variables that an earlier run may have changed
        kernel = kernel.afresh()
    arrays = [array for array in behind_addresses(kernel, args) if array.flags.c_contiguous]
    with kept_apart(arrays, REDZONE if sanitize else 0) as addresses:
        memory = MemoryMap()
        params = pack(kernel, args, memory, iter(addresses))
        return kernel.launch(
            grid,
            block,
            params,
            shared=shared,
            memory=memory,
            seed=seed,
            seconds=seconds,
            budget=NO_BUDGET if budget is None and seconds is None else budget,
            dependent=dependent,
            cooperative=cooperative,
            prints=prints,
        )


def run_together(
    text: str,
    entry: str,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    ranks: Sequence[Sequence[Any]],
    shared: int = 0,
    sanitize: bool = True,
    seed: int | None = None,
    seconds: float | None = DEFAULT_SECONDS,
    budget: int | None = None,
    dependent: bool = False,
    prints: Sink | None = None,
) -> list[Finding]:
    """Run the kernel on as many devices at the same time as `ranks` has arguments, each as `run` takes them: all blocks are
    there at once, take turns, and may wait for each other (`launch_together`). An argument can also be `Addresses` of what
    others have. The rest is as `run` says.
    """
    kernel = _module(text, sanitize, True).kernel(entry)
    own = bool(kernel.image.data_bytes)  # each device has variables of its own
    kernels = [kernel.afresh() if own else kernel for _ in ranks]
    given = [array for args in ranks for array in behind_addresses(kernel, args) if array.flags.c_contiguous]
    with kept_apart(given, REDZONE if sanitize else 0) as places:
        place = {id(array): at for array, at in zip(given, places, strict=True)}
        launches: list[Launch] = []
        for one, args in zip(kernels, ranks, strict=True):
            passed = [_resolved(argument, place) if isinstance(argument, Addresses) else argument for argument in args]
            arrays = behind_addresses(one, passed)
            memory = MemoryMap()
            params = pack(one, passed, memory, iter([place.get(id(array), array.ctypes.data) for array in arrays]))
            launches.append(Launch(one, grid, block, params, shared, memory, dependent))
        return launch_together(
            launches,
            seed=seed,
            seconds=seconds,
            budget=NO_BUDGET if budget is None and seconds is None else budget,
            prints=prints,
        )


def _resolved(addresses: Addresses, place: Mapping[int, int]) -> Marked:
    """The addresses as an array, in memory that is not near to other arrays."""
    import numpy as np

    memory = np.zeros(len(addresses.arrays) + 2 * REDZONE // 8, np.uint64)
    array = memory[REDZONE // 8 : -(REDZONE // 8)]
    for number, one in enumerate(addresses.arrays):
        if id(one) not in place:
            raise ArgumentError("addresses are of arrays that are arguments of the same run, C-contiguous, and not of others")
        array[number] = place[id(one)]
    array.flags.writeable = False
    return Marked(array, constant=True)


@lru_cache(maxsize=32)
def _module(text: str, sanitize: bool, sources: bool) -> Module:
    """Compiled once for all runs of the same text."""
    return compile_module(text, sanitize=sanitize, sources=sources)
