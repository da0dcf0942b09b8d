"""Where a kernel may write: the parameters and variables from which the addresses of its stores can come.

Only that memory can be raced for, so only it needs a shadow: weights, which are many and only read, cost nothing."""

from __future__ import annotations

from ptxgen.emulator.flow import Flow
from ptxgen.emulator.origins import ANYWHERE, Origins
from ptxgen.isa.effects import STORES
from ptxgen.isa.operands import Address

_OWN = ("shared", "local", "param")


def targets(flow: Flow) -> frozenset[str] | None:
    """The names of parameters and variables whose memory, or what they point to, the kernel may write; None: any memory, as
    some address comes from memory or from nowhere."""
    origins = Origins(flow)
    written: set[str] = set()
    for step in (step for block in flow.blocks for step in block.instructions):
        if step.row.effect in STORES:
            place, address = next((p, o) for p in step.row.operands if isinstance(o := step.operands.get(p.name), Address))
            if place.spec.state_space(step.modifiers) in _OWN:
                continue
            names = origins.of(address)
            if not names or ANYWHERE in names:
                return None
            written |= names
    return frozenset(written)
