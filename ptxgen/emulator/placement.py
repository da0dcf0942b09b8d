"""Where the variables of a module and of a kernel lie: offsets in the module's data, in shared memory and in local memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ptxgen.emulator.declarations import LARGEST
from ptxgen.emulator.layout import REDZONE
from ptxgen.emulator.program import Program, Variable
from ptxgen.emulator.registers import MemoryPlace
from ptxgen.errors import ParseError


@dataclass(frozen=True)
class Placement:
    """The places of what a kernel names, its parameters among them, and the bytes that it has in each space."""

    places: dict[str, MemoryPlace]
    data_bytes: int
    """Of the module's global and const variables."""
    shared_bytes: int
    """Of a block, without dynamic shared memory, which starts there."""
    local_bytes: int
    """Of a thread."""


def module_layout(program: Program) -> tuple[dict[str, MemoryPlace], int]:
    """Where the module's global and const variables lie in its data, with redzones around, and how many bytes they take."""
    places: dict[str, MemoryPlace] = {}
    size = 0
    for variable in program.variables.values():
        if variable.space in ("global", "const"):
            size = _rounded_up(size + REDZONE, variable.alignment)
            places[variable.name] = MemoryPlace(variable.space, size, variable.size)
            size += variable.size
    return places, size + REDZONE if places else 0


def kernel_layout(program: Program, entry: str, variables: Iterable[Variable]) -> Placement:
    """The placement of an entry that has these variables of its own; ParseError for too much local memory."""
    places, data_bytes = module_layout(program)
    sizes = {"shared": 0, "local": 0}
    dynamic: list[Variable] = []
    for variable in [*program.variables.values(), *variables]:
        if variable.space == "shared" and variable.external:
            dynamic.append(variable)
        elif variable.space in ("shared", "local", "param"):
            space = "shared" if variable.space == "shared" else "local"
            start = _rounded_up(sizes[space], variable.alignment)
            places[variable.name] = MemoryPlace(space, start, variable.size)
            sizes[space] = start + variable.size
    shared_bytes = _rounded_up(sizes["shared"], max((variable.alignment for variable in dynamic), default=1))
    for variable in dynamic:  # dynamic shared memory starts where the static ends, the same for every name
        places[variable.name] = MemoryPlace("shared", shared_bytes, 0)
    local_bytes, function = _rounded_up(sizes["local"], 16), program.functions[entry]
    if local_bytes > LARGEST["local"]:
        raise ParseError(
            f"{entry} has {local_bytes} bytes of local memory a thread, more than {LARGEST['local']}", function.line
        )
    for parameter in function.parameters:
        places[parameter.name] = MemoryPlace("param", parameter.offset, parameter.size)
    return Placement(places, data_bytes, shared_bytes, local_bytes)


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
