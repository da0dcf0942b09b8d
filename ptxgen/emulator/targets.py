"""Where a kernel may write: the parameters and variables from which the addresses of its stores can come.

Only that memory can be raced for, so only it needs a shadow: weights, which are many and only read, cost nothing."""

from __future__ import annotations

from collections.abc import Iterator

from ptxgen.emulator.flow import Flow, reads_and_writes
from ptxgen.emulator.program import ParsedOperand, Step, SymbolAddress
from ptxgen.isa import effects
from ptxgen.isa.operands import Address, Register, Symbol, Vector
from ptxgen.isa.parts import state_space
from ptxgen.types import PRED

_ANYWHERE = "anywhere"
_POINTER_BITS = 64


def targets(flow: Flow) -> frozenset[str] | None:
    """The names of parameters and variables whose memory, or what they point to, the kernel may write; None: any memory, as
    some address comes from memory or from nowhere."""
    steps = [s for b in flow.blocks for s in [*b.steps, *([b.end] if b.end else [])]]
    sources: dict[str, set[str]] = {}
    found: set[str] = set()
    for step in steps:
        for name, origins in _flows(step):
            sources.setdefault(name, set()).update(origins)
    for step in steps:
        if step.name in effects.STORES and step.modifiers.get("space", "").partition("::")[0] not in (
            "shared",
            "local",
            "param",
        ):
            origins = _origins(_address(step), sources)
            if not origins or _ANYWHERE in origins:
                return None
            found |= origins
    return frozenset(found)


def _flows(step: Step) -> Iterator[tuple[str, set[str]]]:
    """(register or variable, what its contents may come from) of an instruction; a variable's name has `&` before it."""
    reads, _ = reads_and_writes(step)
    if step.guard is not None:
        reads = reads - {step.guard.register.name}
    registers = [r for r in _registers(step) if r.type != PRED]  # which of two addresses is no address
    writes = [r.name for r in registers]
    address = next((o for o in step.operands.values() if isinstance(o, Address)), None)
    if state_space(step.modifiers.get("space", "")) == "param" and address is not None:
        place = _address(step)
        if step.name in effects.STORES:
            yield from ((name, reads - place) for name in place)
        else:
            yield from ((name, place) for name in writes)
    elif address is not None:
        wide = any(r.type.bits >= _POINTER_BITS for r in registers)
        yield from ((name, {_ANYWHERE} if wide else set()) for name in writes)
    else:
        symbols = {f"&{o.name}" for o in step.operands.values() if isinstance(o, SymbolAddress | Symbol)}
        yield from ((name, reads | symbols) for name in writes)


def _registers(step: Step) -> Iterator[Register]:
    """The registers that an instruction writes."""
    for place in step.row.destinations:
        operand: ParsedOperand | None = step.operands.get(place.name)
        elements = operand.elements if isinstance(operand, Vector) else (operand,)
        yield from (r for r in elements if isinstance(r, Register))


def _address(step: Step) -> set[str]:
    """What the memory operand's base is, as `_flows` names it; empty for a number."""
    base = next(o for o in step.operands.values() if isinstance(o, Address)).base
    if isinstance(base, Symbol):
        return {f"&{base.name}"}
    return {base.name} if isinstance(base, Register) else set()


def _origins(names: set[str], sources: dict[str, set[str]]) -> set[str]:
    """The variables (without `&`) and `_ANYWHERE` that contents of these may come from, at any remove."""
    seen: set[str] = set()
    work = list(names)
    while work:
        name = work.pop()
        if name not in seen:
            seen.add(name)
            work.extend(sources.get(name, ()))
    return {n.removeprefix("&") for n in seen if n.startswith("&") or n == _ANYWHERE}
