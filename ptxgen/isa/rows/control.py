"""Control flow, barriers, fences and hints: the rows of PTX ISA 9.7.12, of 9.7.13 but atomics and votes, and of 9.7.19."""

from __future__ import annotations

from functools import partial
from typing import Any

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect, LaneResult
from ptxgen.isa.opcode import modifiers
from ptxgen.isa.parts import CLUSTER_SCOPE, SCOPES
from ptxgen.isa.units import Unit

instruction = partial(table.instruction, unit=Unit.CONTROL)

UNI = ("uni",)


@instruction("bra.{uni?}", uni=UNI, target="label", effect=Effect.BRANCH, section="9.7.12.3")
def bra(v: Algebra, uni: str = "") -> None:
    """Go on at the label."""


@instruction("brx.idx.{uni?}", uni=UNI, index="u32", targets="label", effect=Effect.INDEXED_BRANCH, section="9.7.12.4")
def brx_idx(v: Algebra, index: Number, uni: str = "") -> None:
    """Go on at the label that stands at `index` in the list (.branchtargets) named."""


@instruction("call.{uni?}", uni=UNI, function="symbol", effect=Effect.CALL, section="9.7.12.5")
def call(v: Algebra, uni: str = "") -> None:
    """Call a device function; in the text results precede its name, arguments follow it."""


@instruction("ret.{uni?}", uni=UNI, effect=Effect.RETURN, section="9.7.12.6")
def ret(v: Algebra, uni: str = "") -> None:
    """Return to the caller; in a kernel, end the thread."""


@instruction("exit", effect=Effect.EXIT, section="9.7.12.7")
def exit_(v: Algebra) -> None:
    """End the thread."""


@instruction("trap", effect=Effect.TRAP, section="9.7.19.4")
def trap(v: Algebra) -> None:
    """End the kernel with an error."""
    v.trap()


BOUNDS = {"a": range(16), "b": range(0, 1 << 32, 32)}
block_barrier = partial(instruction, a="u32", b="u32?", bounds=BOUNDS, effect=Effect.BLOCK_BARRIER, section="9.7.13.1")


@block_barrier("bar.sync", name="bar_sync")
@block_barrier("bar.cta.sync", name="bar_sync", ptx=(7, 8))
@block_barrier("barrier.sync.{aligned?}", aligned=("aligned",), name="barrier_sync")
@block_barrier("barrier.cta.sync.{aligned?}", aligned=("aligned",), name="barrier_sync", ptx=(7, 8))
def bar_sync(v: Algebra, a: Number, b: Number | None = None, aligned: str = "") -> None:
    """Wait at barrier a (0..15) for the whole block, or for b threads (a multiple of 32)."""
    v.barrier("block", *((a,) if b is None else (a, b)))


def _reductions(opcode: str, name: str, aligned: str = "", ptx: tuple[int, int] = (6, 3)) -> None:
    """The rows of a barrier that counts, or combines, what its threads bring; with and without their number."""
    words: dict[str, Any] = {"aligned": ("aligned",)} if aligned else {}
    numbers: tuple[dict[str, Any], ...] = ({}, {"b": "u32"})
    for op, type, d in ((("popc",), "u32", "u32"), (("and", "or"), "pred", "pred")):
        for count in numbers:
            instruction(
                f"{opcode}.red.{{op}}{aligned}.{type}",
                op=op,
                **words,
                d=d,
                a="u32",
                **count,
                c="pred",
                name=name,
                ptx=ptx,
                bounds=BOUNDS,
                effect=Effect.BLOCK_BARRIER,
                lanes=LaneResult.SAME,
                section="9.7.13.1",
            )(bar_red)


def bar_red(v: Algebra, a: Number, *rest: Number, op: str, aligned: str = "") -> Number:
    """As `bar.sync`, then d is in how many of the threads c holds, or whether in all (and) or any (or)."""
    *count, c = rest
    holding = v.barrier_count(~c if op == "and" else c, a, *count)
    return {"popc": lambda: holding, "and": lambda: holding == 0, "or": lambda: holding != 0}[op]()


_reductions("bar", "bar_red")
_reductions("bar.cta", "bar_red", ptx=(7, 8))
_reductions("barrier", "barrier_red", ".{aligned?}")
_reductions("barrier.cta", "barrier_red", ".{aligned?}", ptx=(7, 8))


@instruction("bar.warp.sync", mask="b32:u32", name="bar_warp_sync", effect=Effect.WARP_BARRIER, section="9.7.13.2")
def bar_warp_sync(v: Algebra, mask: Number) -> None:
    """Wait for the lanes of the mask."""
    v.barrier("warp", mask)


@instruction("membar.{level}", level=("cta", "gl", "sys"), effect=Effect.FENCE, section="9.7.13.4")
def membar(v: Algebra, level: str) -> None:
    """Earlier accesses are seen before later ones."""
    v.no_effect()


@instruction("fence.{sem?}.{scope}", needs=CLUSTER_SCOPE, effect=Effect.FENCE, section="9.7.13.4")
@modifiers(sem=("sc", "acq_rel"), scope=SCOPES)
def fence(v: Algebra, scope: str, sem: str = "") -> None:
    """Earlier accesses are seen before later ones by the threads of the scope."""
    v.no_effect()


@instruction("griddepcontrol.{action}", sm=90, ptx=(7, 8), effect=Effect.GRID_CONTROL, section="9.7.13.13")
@modifiers(action=("launch_dependents", "wait"))
def griddepcontrol(v: Algebra, action: str) -> None:
    """Let the next grid start early, or wait until earlier grids have finished and their writes are visible."""
    if action == "wait":
        v.barrier("grid")
    else:
        v.no_effect()


@instruction("nanosleep.u32", a="u32", effect=Effect.SLEEP, section="9.7.19.2")
def nanosleep(v: Algebra, a: Number) -> None:
    """Sleep for up to twice a nanoseconds."""
    v.no_effect()
