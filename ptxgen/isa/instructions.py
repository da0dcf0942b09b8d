"""The whole instruction table, in which rows are looked up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from ptxgen.errors import UnknownInstruction
from ptxgen.isa import rows as rows  # every family of rows registers its own
from ptxgen.isa.table import REGISTERED, Instruction
from ptxgen.printable import did_you_mean

ROWS = tuple(REGISTERED)
"""Every row, in the order of the family files."""


def _indexed(key: Callable[[Instruction], Any]) -> dict[Any, tuple[Instruction, ...]]:
    index: dict[Any, list[Instruction]] = {}
    for row in ROWS:
        index.setdefault(key(row), []).append(row)
    return {name: tuple(rows) for name, rows in index.items()}


_BY_NAME = _indexed(lambda row: row.name)
_BY_MNEMONIC = _indexed(lambda row: row.mnemonic)
_BY_MEANING = _indexed(lambda row: row.meaning)


def named(name: str) -> tuple[Instruction, ...]:
    """The rows the builder knows by this name; UnknownInstruction (with near names) if there are none."""
    if name not in _BY_NAME:
        raise UnknownInstruction(f"no instruction is called {name!r}", hint=did_you_mean(name, _BY_NAME))
    return _BY_NAME[name]


def row_of(meaning: Callable[..., Any]) -> Instruction:
    """The first row that this function is the meaning of: an instruction named by what it does, not by its text."""
    return _BY_MEANING[meaning][0]


@lru_cache(maxsize=1024)
def decode(opcode: str) -> tuple[tuple[Instruction, Mapping[str, str]], ...]:
    """Every row, with its modifiers, that spells this opcode text. Usually one; rows that differ in operands only share it."""
    mnemonic, *words = opcode.split(".")
    matches = ((row, row.match(tuple(words))) for row in _BY_MNEMONIC.get(mnemonic, ()))
    return tuple((row, MappingProxyType(modifiers)) for row, modifiers in matches if modifiers is not None)
