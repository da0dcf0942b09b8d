"""Which constants, special registers and addresses may stand in which places, for every row, as NVIDIA's assembler has it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from ptxgen.emulator.parse import parse
from ptxgen.errors import ParseError
from ptxgen.isa import instructions
from ptxgen.isa.effects import Effect
from ptxgen.isa.operand_spec import OperandKind
from ptxgen.isa.operands import Immediate, Vector
from ptxgen.isa.table import Instruction, OperandPlace
from ptxgen.target import Target
from ptxgen.toolchain.assemble import AssembleError, assemble
from ptxgen.types import PRED, S32
from tests.ptxgen.isa.combinations import sensible
from tests.ptxgen.isa.probe import Writer, make_destination, make_source

TRIED = ("1", "-1", "5000000000", "1+2", "WARP_SZ", "1.5", "0f3F800000", "0d3FF0000000000000", "%tid.x", "%clock64", "g")
HEAD = """.global .align 32 .b8 g[64];
.shared .align 32 .b8 sh[64];
.const .align 32 .b8 cc[64];
.visible .entry k(.param .align 16 .b8 pp[64]) {
.reg .u64 %in; .local .align 32 .b8 lo[64];"""
ADDRESSES = {"shared": "[sh]", "const": "[cc]", "local": "[lo]", "param": "[pp]"}
COMBINATIONS = 12
NAMES = list(dict.fromkeys(row.name for row in instructions.ROWS))
ESSENTIAL = ("fma", "bfe", "cvta", "bar_sync")
INTEGERS = ("1", "-1", "5000000000", "1+2", "WARP_SZ")


def is_odd(row: Instruction, modifiers: dict[str, str], form: Form) -> bool:
    """What the assembler takes or refuses by an oversight of its own: it looks at few elements of vectors, takes a float as a
    lane's number and a barrier for any multiple of 32 threads, and refuses a constant predicate beside bf16."""
    place = form.place
    assert place is not None
    if place.spec.in_braces(modifiers):
        return row.collective or form.given not in INTEGERS
    many_threads = row.effect is Effect.BLOCK_BARRIER and form.given == "5000000000"
    predicate = row.name == "setp" and place.spec.types == (PRED,)
    return many_threads or predicate or (row.name in ("shfl", "fns") and form.given.startswith("0f"))


class Form(NamedTuple):
    """An instruction with `given` in one of its places; None as the place where all are registers."""

    place: OperandPlace | None
    given: str
    text: str


def forms(row: Instruction, modifiers: dict[str, str], writer: Writer) -> Iterator[Form]:
    operands: dict[str, object] = {}
    for place in row.operands:
        if place.is_destination:
            operands[place.name] = make_destination(writer, row, place, modifiers)
        elif place.spec.kind is OperandKind.VALUE:
            operands[place.name] = make_source(writer, row, place, modifiers)
        elif place.spec.kind is OperandKind.ADDRESS:
            operands[place.name] = ADDRESSES.get(place.spec.state_space(modifiers), "[%in]")
        else:
            operands[place.name] = Immediate(0, S32) if place.spec.kind is OperandKind.CONSTANT else "L"
    yield Form(None, "", row.text(modifiers, operands))  # type: ignore[arg-type]
    for place in row.operands:
        usual = operands[place.name]
        if place.is_destination or place.spec.kind is not OperandKind.VALUE:
            continue
        for given in TRIED:
            rest = [str(e) for e in usual.elements[1:]] if isinstance(usual, Vector) else []
            shown = f"{{{', '.join([given, *rest])}}}" if isinstance(usual, Vector) else given
            yield Form(place, given, row.text(modifiers, {**operands, place.name: shown}))  # type: ignore[dict-item]


def refused_by_the_assembler(lines: list[str], writer: Writer, target: Target) -> set[int]:
    """The indices of the lines that it complains of."""
    head = f".version 9.0\n.target {target}\n.address_size 64\n{HEAD}\n{' '.join(writer.registers)}\n"
    try:
        assemble(head + "\n".join(lines) + "\nL: ret; }\n", target)
    except AssembleError as error:
        return {int(line) - head.count("\n") - 1 for line in re.findall(r"line (\d+); error", error.log)}
    return set()


def refused_by_us(line: str, writer: Writer) -> str:
    """Why the emulator's reader refuses the line; "" if it does not."""
    used = set(re.findall(r"%x\d+", line))
    registers = " ".join(declared for declared in writer.registers if declared.split()[-1].rstrip(";") in used)
    try:
        parse(f".version 9.0\n.target sm_90\n.address_size 64\n{HEAD}\n{registers}\n{line}\nL: ret; }}\n")
    except ParseError as error:
        return str(error)
    return ""


def few(row: Instruction) -> list[dict[str, str]]:
    """At most so many modifier combinations of a row."""
    allowed = sensible(row)
    return allowed[:: -(-len(allowed) // COMBINATIONS)]


@pytest.mark.parametrize("name", [n if n in ESSENTIAL else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_what_may_stand_in_a_place_is_what_the_assembler_takes(name: str) -> None:
    for row in instructions.named(name):
        writer = Writer()
        found = [(modifiers, form) for modifiers in few(row) for form in forms(row, modifiers, writer)]
        sm = max(row.need(modifiers)[0] for modifiers, form in found if form.place is None)
        refused = refused_by_the_assembler([form.text for _, form in found], writer, Target(max(sm, 75), row.feature))
        usual_refused = False
        wrong = []
        for number, (modifiers, form) in enumerate(found):
            if form.place is None:
                usual_refused = number in refused
            elif not (usual_refused or is_odd(row, modifiers, form)):
                ours = refused_by_us(form.text, writer)
                if bool(ours) != (number in refused):
                    wrong.append(f"{form.text} | refused by the assembler: {number in refused}, by us: {ours}")
        assert not wrong, "\n".join(wrong)
