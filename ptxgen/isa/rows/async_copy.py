"""Asynchronous copies from global to shared memory, not bulk: the rows of PTX ISA 9.7.9.25.3."""

from __future__ import annotations

from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect
from ptxgen.isa.opcode import modifiers, operands
from ptxgen.isa.operands import Address
from ptxgen.isa.units import Unit

instruction = partial(table.instruction, effect=Effect.ASYNC_COPY, sm=80, ptx=(7, 0))

NEEDS: dict[str, table.Need] = {"prefetch": (80, (7, 4)), "space=shared::cta": (80, (7, 8))}


@instruction(
    "cp.async.{cache}.{space}.global.{prefetch?}",
    name="cp_async",
    bounds={"size": (4, 8, 16)},
    defaults={"space": "shared"},
    needs=NEEDS,
    unit=Unit.GLOBAL,
    section="9.7.9.25.3.1",
)
@modifiers(cache=("ca", "cg"), space=("shared", "shared::cta"), prefetch=("L2::64B", "L2::128B", "L2::256B"))
@operands(a="addr", b="global addr", size="imm", taken="u32?")
def cp_async(
    v: Algebra, a: Address, b: Address, size: int, taken: Number | None = None, *, cache: str, space: str, prefetch: str = ""
) -> None:
    """Start to copy `size` bytes (4, 8 or 16; only 16 with `cg`, which passes the L1 cache by) from [b] to shared memory [a];
    bytes past `taken` become 0."""
    v.copy_async(a, b, size, taken)


@instruction("cp.async.commit_group", unit=Unit.CONTROL, section="9.7.9.25.3.2")
def cp_async_commit_group(v: Algebra) -> None:
    """Make a group of the thread's copies since the last one."""
    v.commit_async()


@instruction("cp.async.wait_group", pending="imm", unit=Unit.CONTROL, section="9.7.9.25.3.3")
def cp_async_wait_group(v: Algebra, pending: int) -> None:
    """Wait until at most the last `pending` groups are still under way."""
    v.wait_async(pending)


@instruction("cp.async.wait_all", unit=Unit.CONTROL, section="9.7.9.25.3.3")
def cp_async_wait_all(v: Algebra) -> None:
    """Wait for all copies of the thread."""
    v.commit_async()
    v.wait_async(0)
