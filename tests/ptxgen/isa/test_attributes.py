"""An instruction is defined once: its row says what the analyses must know of it, and nobody else names it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ptxgen.isa.effects import BRANCHES, Effect, LaneResult
from ptxgen.isa.instructions import ROWS, named
from ptxgen.isa.operand_spec import OperandKind, parsed
from ptxgen.isa.table import REGISTERED, instruction
from ptxgen.isa.units import Unit
from tests.paths import ROOT

NAMES = {row.name for row in ROWS} | {row.mnemonic for row in ROWS}

WRITES_AN_INSTRUCTION = {"op", "write", "_once", "_written", "_of_bits"}
"""What takes an instruction's name in the builder; `k.NAME(...)` is short for it."""

OPERATIONS = {
    "add", "sub", "mul", "div", "and", "or", "xor", "shl", "min", "max", "fma", "sqrt", "rsqrt", "rcp", "ex2", "lg2", "sin",
    "cos", "tanh",
}  # fmt: skip
"""Operations of the algebra (isa/algebra.py) and of LLVM, which have names of their own: as a rule the same ones."""

OTHER_WORDS = {
    # Functions of Python and NumPy, and (ex2, lg2, rsqrt) of PTX and CUDA: what authors may call, with the cure for each.
    "ptxgen/dsl/refusals.py": {"add", "cos", "ex2", "lg2", "rsqrt", "sin", "sqrt", "tanh"},
    "ptxgen/dsl/mathlib.py": {"tanh", "rsqrt"},  # functions of the library, named in messages
    "ptxgen/emulator/sanitizer.py": {"barrier", "trap"},  # kinds of findings
    "ptxgen/emulator/jit.py": {"exit", "trap"},  # labels of the emulator's own code
    "ptxgen/emulator/memory.py": {"atom"},
    "ptxgen/emulator/shared_steps.py": {"call"},  # an instruction of LLVM
    "executor/text/json_schema.py": {"not"},  # a keyword of JSON Schema
    "ptxgen/kernels/attention/paged_attention.py": {"prefetch"},  # a setting, which `bit_free` names
}


def spelt(root: Path) -> Iterator[str]:
    """Where the packages have an instruction's name as a string, but for the instructions that the builder writes by name."""
    for file in sorted(path for package in ("ptxgen", "executor") for path in (root / package).rglob("*.py")):
        place = file.relative_to(root).as_posix()
        if place.startswith("ptxgen/isa/"):
            continue
        other = OTHER_WORDS.get(place, set()) | (OPERATIONS if place.startswith("ptxgen/emulator/") else set())
        yield from (f"{place}:{line} {name}" for line, name in _names(ast.parse(file.read_text())) if name not in other)


def _names(node: ast.AST) -> Iterator[tuple[int, str]]:
    inside = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Constant) and isinstance(word := node.value, str) and " " not in word:
        yield from [(node.lineno, word)] if word.partition(".")[0] in NAMES else []
    called = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
    if isinstance(node, ast.Call) and called in WRITES_AN_INSTRUCTION:
        inside = [node.func, *node.args[2 if called == "_once" else 1 :]]  # `_once(key, name, ...)`
    for child in inside:
        yield from _names(child)


def test_no_instruction_is_named_outside_the_table() -> None:
    assert list(spelt(ROOT)) == []


@pytest.mark.parametrize(
    "line", ['if step.name == "bra": pass', 'WRITERS = {"st", "atom"}', 'decode("mov.b32")', 'k.f(a, "cp_async")']
)
def test_a_name_outside_the_table_is_found(tmp_path: Path, line: str) -> None:
    file = tmp_path / "ptxgen" / "verify" / "cfg.py"
    file.parent.mkdir(parents=True)
    file.write_text(f'k.op("add", a, b)\n{line}\n')
    assert all(place.startswith("ptxgen/verify/cfg.py:2 ") for place in spelt(tmp_path))
    assert list(spelt(tmp_path))


FACTS: dict[str, Any] = {"effect": Effect.NONE, "unit": Unit.ALU, "section": "9"}


def meaning(v: object) -> None: ...


@pytest.mark.parametrize("fact", FACTS)
def test_a_row_without_its_attributes_cannot_be_registered(fact: str) -> None:
    with pytest.raises(TypeError, match=fact):
        instruction("new.b32", d="b32", a="b32", **{name: value for name, value in FACTS.items() if name != fact})


@pytest.mark.parametrize(
    ("template", "row", "complaint"),
    [
        ("new.b32", {"d": "b32", "a": "addr"}, "does something to memory"),
        ("new", {"target": "label"}, "is a branch"),
        ("new.b32", {"d": "b32", "a": "b32", "effect": Effect.BRANCH}, "is a branch"),
        ("new.sync.b32", {"d": "b32", "a": "b32", "mask": "b32"}, "say what each of them gets"),
        ("new.f16", {"d": "f32", "a": "b32"}, "say what they hold"),
        ("new.b32", {"d": "b32", "mask": "b32", "lanes": LaneResult.SAME}, "together"),
    ],
)
def test_a_row_whose_attributes_do_not_suit_its_text_is_refused(template: str, row: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        instruction(template, **{**FACTS, **row})(meaning)
    assert tuple(REGISTERED) == ROWS


@pytest.mark.parametrize("first", ["ptxgen.isa.rows.warpgroup", "ptxgen.explain.loops"])
def test_the_table_has_one_order_whatever_is_imported_first(first: str) -> None:
    program = f"import {first}; from ptxgen.isa.instructions import ROWS; print(*(row.name for row in ROWS))"
    told = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout.split() == [row.name for row in ROWS]


@pytest.mark.parametrize("text", ["", "u33", "{type", "b32[", "imm addr", "2u32", "= d", "addr+"])
def test_what_is_no_operand_spec_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="operand"):
        parsed(text)


def test_the_rows_that_take_a_label_are_the_branches() -> None:
    labels = {row.effect for row in ROWS if any(place.spec.kind is OperandKind.LABEL for place in row.operands)}
    assert labels == BRANCHES


def test_every_row_of_a_mask_is_executed_by_its_lanes_together() -> None:
    assert all(row.collective for row in ROWS if any(place.name == "mask" for place in row.operands))


def test_every_barrier_says_who_waits() -> None:
    barriers = {row.effect for row in ROWS if row.mnemonic in ("bar", "barrier")}
    assert barriers == {Effect.BLOCK_BARRIER, Effect.WARP_BARRIER}


def test_what_uses_the_carry_flag_says_so() -> None:
    assert {row.name for row in ROWS if row.writes_carry} == {row.name for row in ROWS if row.section.startswith("9.7.2.")}
    assert {row.name for row in ROWS if row.reads_carry} == {"addc", "subc", "madc"}


def test_a_unit_follows_from_the_type_and_the_space_of_a_form() -> None:
    units = {row.opcode({"rnd": "rn"}): row.unit_of({"rnd": "rn"}) for row in named("fma") if row.section.startswith("9.7.3.")}
    assert units == {"fma.rn.f32": Unit.FMA, "fma.rn.f64": Unit.DOUBLE}
    load = named("ld")[0]
    spaces = {space: load.unit_of({"space": space}) for space in ("shared", "param", "global")}
    assert spaces == {"shared": Unit.SHARED, "param": Unit.CONSTANT, "global": Unit.GLOBAL}
