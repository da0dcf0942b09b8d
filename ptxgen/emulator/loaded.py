"""What a launch needs of a module and of its kernel, in this process's memory: variables, lines and code. What compiles them is
machine.py's."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptxgen.emulator.facts import Facts
from ptxgen.emulator.memory_map import Allocation
from ptxgen.emulator.program import Program, Step
from ptxgen.emulator.scratch import Scratch, aligned
from ptxgen.emulator.watch import Run
from ptxgen.errors import ArgumentError
from ptxgen.files import read_regular
from ptxgen.printable import excerpt

_LARGEST_SOURCE = 1 << 22  # bytes of a file that an author wrote


class Image:
    """A module's text, its global and const variables, and whose line each of its lines is. With `sources` the files that the
    text names are read for that."""

    def __init__(self, text: str, *, sources: bool) -> None:
        self.text, self.sources = text, sources
        self._program: Program | None = None
        self._block_lines: dict[str, list[int]] = {}
        self._data: Any = None
        self.data_address = self.data_bytes = 0
        self.variables: list[Allocation] = []

    @property
    def program(self) -> Program:
        """The parsed text; read only when something needs it, because a cached kernel does not."""
        if self._program is None:
            from ptxgen.emulator.parse import parse

            self._program = parse(self.text)
        return self._program

    def lay_out_data(self) -> None:
        """Make the module's variables, once, with their initial values and the addresses in them."""
        if self._data is not None:
            return
        from ptxgen.emulator.placement import module_layout

        places, size = module_layout(self.program)
        self._data, self.data_address = aligned(size)
        self.data_bytes = size
        for variable in self.program.variables.values():
            if variable.name not in places:
                continue
            at = self.data_address + places[variable.name].offset
            constant = variable.space == "const"
            name = f"the variable {variable.name}"
            self.variables.append(Allocation(at, variable.size, name, read_only=constant, constant=constant))
            ctypes.memmove(at, bytes(variable.initial.data), len(variable.initial.data))
            for pointer in variable.initial.pointers:
                if pointer.symbol not in places:
                    raise ArgumentError(f"{variable.name} is initialised with the address of {pointer.symbol}, which has none")
                value = pointer.value(self.data_address + places[pointer.symbol].offset)
                ctypes.memmove(at + pointer.offset, value.to_bytes(pointer.size, "little"), pointer.size)

    def afresh(self) -> Image:
        """The same module with variables of its own, which have their initial values."""
        image = Image(self.text, sources=self.sources)
        image._program, image._block_lines = self.program, self._block_lines
        image.lay_out_data()
        return image

    def block_lines(self, entry: str) -> list[int]:
        """The first line of each block of an entry."""
        if entry not in self._block_lines:
            from ptxgen.emulator.flow import flow

            lines = []
            for block in flow(self.program, entry).blocks:
                lines.append(block.steps[0].line if block.steps else block.end.line if block.end else 0)
            self._block_lines[entry] = lines
        return self._block_lines[entry]

    def source_of(self, line: int) -> tuple[str, str, str]:
        """(ptx text, author's file:line, that line's source) of a PTX line; empty where the text has no `.loc`, the last where
        the file is not read."""
        lines = self.text.splitlines()
        text = excerpt(lines[line - 1].strip()) if 0 < line <= len(lines) else ""
        for function in self.program.functions.values():
            for item in function.items:
                if isinstance(item, Step) and item.line == line and item.source is not None:
                    file = self.program.files.get(item.source.file, f"file {item.source.file}")
                    source = _source_line(file, item.source.line) if self.sources else ""
                    return text, excerpt(f"{file}:{item.source.line}", 4096), source
        return text, "", ""


class EmulatedKernel:
    """The code of an entry, and what its launches leave for those to come. `shared_bytes` is its static shared memory;
    `parameters` its parameters in order; `from_cache` says whether its code came from disk; `run` is its code."""

    def __init__(self, image: Image, name: str, facts: Facts, code: Any, *, sanitize: bool, from_cache: bool = False) -> None:
        from ptxgen.emulator.codegen import RUN

        self.image, self.name = image, name
        self.sanitize = sanitize
        self.facts, self.from_cache = facts, from_cache
        self.shared_bytes, self.parameters = facts.shared_bytes, facts.parameters
        self.parameter_bytes = max((p.offset + p.size for p in self.parameters), default=0)
        self._code = code
        self.run: Run = RUN(code.function("run"))
        self._scratch: dict[tuple[tuple[int, int, int], int], list[Scratch]] = {}
        self.block_ns: dict[tuple[int, int, int], float] = {}
        """How long a block of these threads took."""

    def take(self, block: tuple[int, int, int], shared: int) -> Scratch:
        """What a worker needs for blocks of this shape, used before or new."""
        try:
            return self._scratch[block, shared].pop()
        except (KeyError, IndexError):
            return Scratch(self.facts, block, shared)

    def keep(self, block: tuple[int, int, int], shared: int, scratches: Sequence[Scratch]) -> None:
        """Keep such for the launches to come."""
        self._scratch.setdefault((block, shared), []).extend(scratches)


def _source_line(file: str, line: int) -> str:
    try:
        lines = read_regular(Path(file), _LARGEST_SOURCE).decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return excerpt(lines[line - 1].strip()) if 0 < line <= len(lines) else ""
