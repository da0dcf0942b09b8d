"""The rooms of the house, in layers: which room may import which. Read from the source, imports for types included; nothing is
imported. What is right is said in ARROWS; tests/test_rooms.py holds the code to it, tests/rooms_picture.py draws it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("ptxgen", "executor")

ARROWS: Final[Mapping[str, tuple[str, ...]]] = {
    "ptxgen": (),
    "ptxgen.isa": ("ptxgen",),
    "ptxgen.gpus": ("ptxgen", "ptxgen.isa"),
    "ptxgen.emulator": ("ptxgen", "ptxgen.isa"),
    "ptxgen.dsl": ("ptxgen", "ptxgen.isa"),
    "ptxgen.verify": ("ptxgen", "ptxgen.isa", "ptxgen.dsl"),
    "ptxgen.toolchain": ("ptxgen", "ptxgen.isa", "ptxgen.dsl", "ptxgen.verify"),
    "ptxgen.formats": ("ptxgen", "ptxgen.dsl"),
    "ptxgen.kernels": ("ptxgen", "ptxgen.dsl", "ptxgen.formats"),
    "ptxgen.conformance": ("ptxgen", "ptxgen.isa", "ptxgen.emulator", "ptxgen.dsl", "ptxgen.toolchain", "ptxgen.kernels"),
    "ptxgen.explain": ("ptxgen", "ptxgen.isa", "ptxgen.gpus", "ptxgen.dsl", "ptxgen.verify", "ptxgen.toolchain"),
    "ptxgen.commands": (
        "ptxgen", "ptxgen.emulator", "ptxgen.dsl", "ptxgen.toolchain", "ptxgen.formats", "ptxgen.kernels", "ptxgen.conformance",
        "ptxgen.gpus", "ptxgen.explain",
    ),
    "executor.base": ("ptxgen", "ptxgen.gpus", "ptxgen.formats"),
    "executor.gguf": ("ptxgen", "executor.base"),
    "executor.text": ("ptxgen", "executor.base", "executor.gguf"),
    "executor.device": ("ptxgen", "ptxgen.gpus", "ptxgen.emulator", "ptxgen.dsl", "ptxgen.toolchain", "executor.base"),
    "executor.memory": (
        "ptxgen", "ptxgen.dsl", "ptxgen.formats", "ptxgen.kernels", "executor.base", "executor.gguf", "executor.device",
    ),
    "executor.launch": (
        "ptxgen", "ptxgen.dsl", "ptxgen.toolchain", "ptxgen.kernels", "executor.base", "executor.device", "executor.memory",
    ),
    "executor.choice": (
        "ptxgen", "ptxgen.gpus", "ptxgen.dsl", "ptxgen.formats", "ptxgen.kernels", "executor.base", "executor.device",
        "executor.launch",
    ),
    "executor.layers": (
        "ptxgen", "ptxgen.dsl", "ptxgen.formats", "ptxgen.kernels", "executor.base", "executor.device", "executor.memory",
        "executor.launch", "executor.choice",
    ),
    "executor.measure": (
        "ptxgen", "ptxgen.isa", "ptxgen.dsl", "ptxgen.formats", "ptxgen.kernels", "ptxgen.gpus", "executor.base",
        "executor.device", "executor.memory", "executor.launch",
    ),
    "executor.model": (
        "ptxgen", "ptxgen.isa", "ptxgen.formats", "ptxgen.kernels", "ptxgen.gpus", "executor.base", "executor.gguf",
        "executor.text", "executor.device", "executor.memory", "executor.launch", "executor.choice", "executor.layers",
        "executor.measure",
    ),
    "executor.bundle": (
        "ptxgen", "ptxgen.dsl", "ptxgen.toolchain", "ptxgen.kernels", "executor.base", "executor.gguf", "executor.device",
        "executor.memory", "executor.launch", "executor.choice", "executor.layers", "executor.model",
    ),
    "executor.tune": (
        "ptxgen", "ptxgen.dsl", "ptxgen.formats", "ptxgen.kernels", "executor.base", "executor.device", "executor.launch",
        "executor.choice", "executor.layers", "executor.measure",
    ),
    "executor.api": (
        "ptxgen", "ptxgen.formats", "ptxgen.kernels", "executor.base", "executor.gguf", "executor.device", "executor.memory",
        "executor.launch", "executor.choice", "executor.layers", "executor.measure", "executor.model",
    ),
    "executor.torch": (
        "ptxgen", "ptxgen.formats", "executor.base", "executor.gguf", "executor.memory", "executor.model", "executor.api",
    ),
    "executor.serve": ("ptxgen", "executor.base", "executor.text", "executor.device", "executor.model"),
    "executor.commands": (
        "ptxgen", "ptxgen.dsl", "ptxgen.kernels", "ptxgen.commands", "executor.base", "executor.gguf", "executor.text",
        "executor.device", "executor.launch", "executor.choice", "executor.measure", "executor.model", "executor.bundle",
        "executor.tune", "executor.api", "executor.serve",
    ),
    "executor": (
        "ptxgen", "executor.base", "executor.text", "executor.memory", "executor.choice", "executor.layers", "executor.model",
        "executor.api",
    ),
}  # fmt: skip
"""By room, the lowest first: the rooms that it may import, each above it in this list, so no arrow leads back. The room of
a package's own name is what lies loose in it."""


class Import(NamedTuple):
    """A module that imports another one of ours, and where."""

    importer: str
    imported: str
    place: str
    """FILE:LINE"""


def modules(root: Path = ROOT) -> dict[str, Path]:
    """By dotted name, the files of both packages."""
    files = (file for package in PACKAGES for file in sorted((root / package).rglob("*.py")))
    return {".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def room_of(module: str, known: Mapping[str, Path]) -> str:
    """The room that a module is in. `python -m` of a room is a command, wherever it lies."""
    package, *rest = module.split(".")
    if module.endswith(".__main__"):
        return f"{package}.commands"
    room = f"{package}.{rest[0]}" if rest else package
    return room if rest and known[room].name == "__init__.py" else package


def imports(known: Mapping[str, Path], root: Path = ROOT) -> Iterator[Import]:
    """Every import of one module of ours by another: at the top, in functions and for types."""
    for module, file in known.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                package = ".".join(module.split(".")[: -node.level]) if node.level else ""
                origin = ".".join(filter(None, (package, node.module)))
                names = [f"{origin}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                imported = name if name in known else name.rpartition(".")[0]
                if imported in known and imported != module:
                    yield Import(module, imported, f"{file.relative_to(root)}:{node.lineno}")


@lru_cache
def arrows(root: Path = ROOT) -> dict[tuple[str, str], list[str]]:
    """By the two rooms of each arrow, the places of the imports that make it."""
    known = modules(root)
    drawn: dict[tuple[str, str], list[str]] = {}
    for importer, imported, place in imports(known, root):
        ends = room_of(importer, known), room_of(imported, known)
        if ends[0] != ends[1]:
            drawn.setdefault(ends, []).append(place)
    return drawn
