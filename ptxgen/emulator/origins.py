"""What the address of an access may be made from: parameters, variables, or something that came out of memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ptxgen.emulator.flow import Flow, reads_and_writes
from ptxgen.emulator.program import ParsedOperand, Step, SymbolAddress
from ptxgen.isa.effects import STORES
from ptxgen.isa.operand_spec import state_space
from ptxgen.isa.operands import Address, Register, Symbol, Vector
from ptxgen.types import BY_NAME, PRED

ANYWHERE = "anywhere"
"""The origin of a 64-bit number from memory, or from beside a parameter: it may be any address. A narrower number from memory
is taken for an index."""
_POINTER_BITS = 64


class Origins:
    """Of all instructions of a kernel, in whatever order they run: a number is made from all that it is computed from. What a
    parameter holds and where it lies count as one, and a parameter of a call comes from what was put there."""

    def __init__(self, flow: Flow) -> None:
        self._sources: dict[str, set[str]] = {}
        sizes = {name: variable.size for name, variable in flow.variables.items() if variable.space == "param"}
        sizes |= flow.parameters
        for block in flow.blocks:
            for step in block.instructions:
                for name, origins in _flows(step, sizes):
                    self._sources.setdefault(name, set()).update(origins)

    def of(self, address: Address) -> frozenset[str]:
        """The names of the parameters and variables that this address may be made from, at any remove, and ANYWHERE; empty for
        a number that comes from nowhere."""
        seen: set[str] = set()
        work = list(_base(address))
        while work:
            name = work.pop()
            if name not in seen:
                seen.add(name)
                work.extend(self._sources.get(name, ()))
        return frozenset(name.removeprefix("&") for name in seen if name.startswith("&") or name == ANYWHERE)


def _flows(step: Step, sizes: Mapping[str, int]) -> Iterator[tuple[str, set[str]]]:
    """(register or variable, what its contents may come from) of an instruction; a variable's name has `&` before it. `sizes`:
    the bytes of parameters."""
    reads, _ = reads_and_writes(step)
    if step.guard is not None:
        reads = reads - {step.guard.register.name}
    registers = [r for r in _registers(step) if r.type != PRED]  # which of two addresses is no address
    writes = [r.name for r in registers]
    address = next((o for o in step.operands.values() if isinstance(o, Address)), None)
    wide = any(r.type.bits >= _POINTER_BITS for r in registers)
    if address is None:
        symbols = {f"&{o.name}" for o in step.operands.values() if isinstance(o, SymbolAddress | Symbol)}
        yield from ((name, reads | symbols) for name in writes)
    elif state_space(step.modifiers.get("space", "")) == "param" and isinstance(address.base, Symbol):
        place = _base(address)
        if step.row.effect in STORES:
            yield from ((name, reads - place) for name in place)
        else:
            held = {ANYWHERE} if _beside(step, address, sizes) else place
            yield from ((name, held) for name in writes)
    else:
        yield from ((name, {ANYWHERE} if wide else set()) for name in writes)


def _beside(step: Step, address: Address, sizes: Mapping[str, int]) -> bool:
    """Whether a load from a parameter reads what is not in it."""
    count = int(step.modifiers.get("vec", "v1")[1:])
    end = address.offset + count * BY_NAME[step.modifiers["type"]].bytes
    return address.offset < 0 or end > sizes.get(str(address.base), end)


def _registers(step: Step) -> Iterator[Register]:
    """The registers that an instruction writes."""
    for place in step.row.results:
        operand: ParsedOperand | None = step.operands.get(place.name)
        elements = operand.elements if isinstance(operand, Vector) else (operand,)
        yield from (r for r in elements if isinstance(r, Register))


def _base(address: Address) -> set[str]:
    """An address's base, as `_flows` names it; empty for a number."""
    if isinstance(address.base, Symbol):
        return {f"&{address.base.name}"}
    return {address.base.name} if isinstance(address.base, Register) else set()
