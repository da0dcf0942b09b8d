"""Early starts of all instructions and of random structured programs: what the rule on the text says is what every way through
the program says, and what the emulator finds is what the threads did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen.conformance.dependent_launch import violations
from ptxgen.dsl.arguments import Signature, read, update
from ptxgen.emulator import Finding, constant, run
from ptxgen.isa import instructions
from ptxgen.isa.effects import Effect
from ptxgen.isa.operand_spec import OperandKind, OperandSpec
from ptxgen.isa.operands import Address, AnyOperand, Immediate, Register, Vector
from ptxgen.isa.table import Instruction
from ptxgen.types import BY_NAME, U32
from tests.ptxgen.emulator.ptx import FIRST_LINE, kernel
from tests.ptxgen.isa.combinations import allowed, sensible

THREADS = 64
SIGNATURE: Signature = {"p0": update(U32, 64), "p1": read(U32, 64, constant=True)}
HEAD = "ld.param.u64 %rd1, [p0];\nld.param.u64 %rd2, [p1];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, s;"
BODY = FIRST_LINE + 4
SHARED = ".shared .align 16 .b8 s[16];"
WAIT = "griddepcontrol.wait;"


def text_of(body: str) -> str:
    return kernel(f"{HEAD}\n{body}", "u64", "u64", shared=SHARED)


def unordered(text: str, threads: int = THREADS) -> list[Finding]:
    """What the emulator finds touched before the wait."""
    x, w = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    found = run(text, "k", 1, threads, [x, constant(w)], dependent=True)
    return [f for f in found if f.kind == "unordered" and "none of its threads has waited" not in f.message]


# All instructions
def addresses(row: Instruction) -> list[OperandSpec]:
    return [place.spec for place in row.operands if place.spec.kind is OperandKind.ADDRESS]


def forms(row: Instruction) -> Iterator[dict[str, str]]:
    """The modifiers with which a row of sm_90 touches what other kernels may have written."""
    return (modifiers for modifiers in sensible(row) if touches(row, modifiers))


def touches(row: Instruction, modifiers: dict[str, str]) -> bool:
    spaces = {spec.state_space(modifiers) for spec in addresses(row)}
    return bool(spaces & {"global", "generic"}) and row.need(modifiers) <= (90, (8, 0))


TOUCHING = [
    row
    for row in instructions.ROWS
    if addresses(row) and row.effect is not Effect.PREFETCH and any(touches(row, modifiers) for modifiers in allowed(row))
]


def written(row: Instruction, modifiers: dict[str, str], *, short: bool) -> str:
    """The instruction on p0 in a scope with its registers; if `short` without the operands that it need not have."""
    declared: list[str] = []
    operands: dict[str, AnyOperand] = {}
    for place in row.operands:
        spec = place.spec
        if spec.kind is OperandKind.ADDRESS:
            shared = spec.state_space(modifiers) == "shared"
            operands[place.name] = Address(Register("%r2" if shared else "%rd1", BY_NAME["b32" if shared else "b64"]))
        elif spec.kind is OperandKind.CONSTANT or place.optional or place.name == "size":  # no bytes are no touch
            if not (short and place.optional):
                operands[place.name] = Immediate(16, U32)
        else:
            (type, *_) = spec.allowed(modifiers)
            type = type if type.bits >= 16 else BY_NAME["b16"]
            elements = tuple(Register(f"%{place.name}{i}", type) for i in range(spec.length(modifiers)))
            declared += [f".reg .{type.register} {register};" for register in elements]
            operands[place.name] = Vector(elements) if spec.in_braces(modifiers) else elements[0]
    return f"{{ {' '.join(declared)} {row.text(modifiers, operands)} }}"


def test_instructions_that_touch_memory_are_asked() -> None:
    assert {row.name for row in TOUCHING} >= {"ld", "ld_nc", "st", "atom", "red", "cp_async", "cp_async_bulk"}


@pytest.mark.parametrize("name", dict.fromkeys(row.name for row in TOUCHING))
def test_every_form_of_an_instruction_is_found(name: str) -> None:
    rows = [(row, modifiers) for row in TOUCHING if row.name == name for modifiers in forms(row)]
    lines = list(dict.fromkeys(written(row, modifiers, short=short) for row, modifiers in rows for short in (True, False)))
    text = text_of("\n".join([*lines, WAIT]))
    everywhere = set(range(BODY, BODY + len(lines)))
    found = [one for one in violations(text, "k", SIGNATURE) if one.startswith("p0 is touched before the wait\n")]
    assert {int(one.split("ptx line ")[1].split()[0]) for one in found} == everywhere
    assert {f.ptx_line for f in unordered(text, 1)} == everywhere
    later = text_of("\n".join([WAIT, *lines]))
    assert not any("touched" in one for one in violations(later, "k", SIGNATURE))


# Random programs
Node = tuple[Any, ...]
TOUCHES = {
    "load": "ld.global.u32 %r3, [%rd1];",
    "generic": "ld.u32 %r3, [%rd1];",
    "red": "red.global.add.u32 [%rd1], 1;",
    "copy": "cp.async.ca.shared.global [%r2], [%rd1], 16;",
    "share": "cp.async.ca.shared.global [%r2], [%rd1], 16, %r1;",
    "weights": "ld.global.nc.u32 %r3, [%rd2];",
    "prefetch": "prefetch.global.L2 [%rd1];",
}
HARMLESS = ("weights", "prefetch")


def statements(depth: int) -> st.SearchStrategy[list[Node]]:
    """The conditions: whether the thread's number is a multiple of one, or anything where it is 0."""
    modulus = st.sampled_from([0, 0, 1, 2, 33])
    simple: st.SearchStrategy[Node] = st.one_of(
        st.tuples(st.just("touch"), modulus, st.sampled_from(list(TOUCHES))),
        st.tuples(st.just("wait"), modulus),
        st.tuples(st.just("leave"), st.sampled_from([1, 3, 32])),
    )
    if depth:
        inner = statements(depth - 1)
        simple = st.one_of(
            simple,
            st.tuples(st.just("branch"), st.sampled_from([1, 2, 32]), inner, inner),
            st.tuples(st.just("loop"), st.integers(1, 3), inner),
            st.tuples(st.just("until"), st.integers(1, 3), inner),
        )
    return st.lists(simple, max_size=4)


@dataclass
class Writer:
    """PTX of a program; each loop counts in its own register."""

    lines: list[str] = field(default_factory=list)
    labels: int = 0

    def write(self, program: list[Node]) -> None:
        for node in program:
            getattr(self, f"write_{node[0]}")(*node[1:])

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def test(self, modulus: int) -> None:
        self.lines += [f"rem.u32 %r9, %r1, {modulus};", "setp.eq.u32 %p1, %r9, 0;"]

    def write_guarded(self, modulus: int, instruction: str) -> None:
        if modulus:
            self.test(modulus)
        self.lines.append(f"@%p1 {instruction}" if modulus else instruction)

    def write_touch(self, modulus: int, what: str) -> None:
        self.write_guarded(modulus, TOUCHES[what])

    def write_wait(self, modulus: int) -> None:
        self.write_guarded(modulus, WAIT)

    def write_leave(self, modulus: int) -> None:
        self.write_guarded(modulus, "exit;")

    def write_branch(self, modulus: int, yes: list[Node], no: list[Node]) -> None:
        other, after = self.label(), self.label()
        self.test(modulus)
        self.lines.append(f"@!%p1 bra {other};")
        self.write(yes)
        self.lines += [f"bra {after};", f"{other}:"]
        self.write(no)
        self.lines.append(f"{after}:")

    def write_loop(self, limit: int, body: list[Node]) -> None:
        """As often as the thread's number modulo `limit` says."""
        top, after = self.label(), self.label()
        self.lines += [f".reg .b32 c{top};", f"rem.u32 c{top}, %r1, {limit};", f"{top}:"]
        self.lines += [f"setp.eq.u32 %p1, c{top}, 0;", f"@%p1 bra {after};", f"sub.u32 c{top}, c{top}, 1;"]
        self.write(body)
        self.lines += [f"bra {top};", f"{after}:"]

    def write_until(self, limit: int, body: list[Node]) -> None:
        """Once more than that."""
        top = self.label()
        self.lines += [f".reg .b32 c{top};", f"rem.u32 c{top}, %r1, {limit};", f"add.u32 c{top}, c{top}, 1;", f"{top}:"]
        self.write(body)
        self.lines += [f"sub.u32 c{top}, c{top}, 1;", f"setp.ne.u32 %p1, c{top}, 0;", f"@%p1 bra {top};"]


@dataclass
class EveryWay:
    """Whether some way through a program, if each condition may go either way, touches memory before a wait or leaves."""

    touches: bool = False
    ends: bool = False

    def after(self, program: list[Node], before: frozenset[bool]) -> frozenset[bool]:
        """Whether a thread may have waited, and whether it may not, behind the program; the same before it is given."""
        for node in program:
            before = getattr(self, node[0])(before, *node[1:])
        return before

    def touch(self, before: frozenset[bool], modulus: int, what: str) -> frozenset[bool]:
        self.touches |= False in before and what not in HARMLESS
        return before

    def wait(self, before: frozenset[bool], modulus: int) -> frozenset[bool]:
        return before if modulus else frozenset({True})

    def leave(self, before: frozenset[bool], modulus: int) -> frozenset[bool]:
        self.ends |= False in before
        return before

    def branch(self, before: frozenset[bool], modulus: int, yes: list[Node], no: list[Node]) -> frozenset[bool]:
        return self.after(yes, before) | self.after(no, before)

    def loop(self, before: frozenset[bool], limit: int, body: list[Node]) -> frozenset[bool]:
        return before | self.until(before, limit, body)

    def until(self, before: frozenset[bool], limit: int, body: list[Node]) -> frozenset[bool]:
        once = self.after(body, before)
        return once | self.after(body, once)


@dataclass
class Thread:
    """What a thread of this number does: how often it touches memory without having waited."""

    number: int
    waited: bool = False
    dependent: int = 0

    def goes(self, program: list[Node]) -> bool:
        """Run the program; whether the thread is still there."""
        return all(self.does(*node) for node in program)

    def does(self, kind: str, number: int, *rest: Any) -> bool:
        holds = number == 0 or self.number % number == 0
        if kind == "touch":
            reads = rest[0] not in HARMLESS and (rest[0] != "share" or self.number > 0)
            self.dependent += holds and reads and not self.waited
        elif kind == "wait":
            self.waited |= holds
        elif kind == "leave":
            return not holds
        elif kind == "branch":
            return self.goes(rest[0] if holds else rest[1])
        else:
            turns = self.number % number + (kind == "until")
            return all(self.goes(rest[0]) for _ in range(turns))
        return True


def program_text(program: list[Node]) -> str:
    writer = Writer()
    writer.write(program)
    return text_of("\n".join(writer.lines))


@given(statements(2))
@settings(max_examples=60, deadline=None)
def test_the_rule_on_the_text_is_that_of_every_way(program: list[Node]) -> None:
    ways = EveryWay()
    unwaited = False in ways.after(program, frozenset({False}))
    found = violations(program_text(program), "k", SIGNATURE)
    assert any("touched" in one for one in found) == ways.touches
    assert any("may end here" in one for one in found) == (ways.ends or unwaited)


@given(statements(2))
@settings(max_examples=12, deadline=None)
def test_the_emulator_finds_what_each_thread_touched(program: list[Node]) -> None:
    threads = [Thread(number) for number in range(THREADS)]
    for thread in threads:
        thread.goes(program)
    text = program_text(program)
    found = unordered(text)
    assert sum(f.count for f in found) == sum(thread.dependent for thread in threads)
    assert not found or any("touched" in one for one in violations(text, "k", SIGNATURE))
