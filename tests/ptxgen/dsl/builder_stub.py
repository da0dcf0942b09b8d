"""Writes ptxgen/dsl/builder.pyi, by which editors and type checkers know the builder: what builder.py has, and a method for
each name of the instruction table. The types of registers are not known to them (a register is a Value), so which of a name's
rows fits, and whether its modifiers go together, is still found out when the kernel is written."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from keyword import iskeyword
from pathlib import Path
from textwrap import TextWrapper

from ptxgen.dsl import builder
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.isa.instructions import ROWS
from ptxgen.isa.opcode import OpcodeSlot
from ptxgen.isa.operand_spec import OperandKind, element_of
from ptxgen.isa.table import Instruction, OperandPlace
from ptxgen.types import BY_NAME

STUB = Path(builder.__file__).with_suffix(".pyi")
NOTE = "# Written by `python -m tests.ptxgen.dsl.builder_stub` from builder.py and the table in ptxgen/isa; do not edit.\n"
DOCSTRING = TextWrapper(124, initial_indent="    ", subsequent_indent="    ")  # in a class
IMPORTS = """
from collections.abc import Sequence
from typing import Any, Literal, overload
from ptxgen.isa.operands import Address, LabelRef, Symbol
from ptxgen.types import DType
"""

REGISTER, WHOLE, NUMBER = "Value", "Value | int", "Value | float"
"""What a type checker takes where one register may stand: no constant, a whole one, any."""
SCALARS = (REGISTER, WHOLE, NUMBER)
REGISTERS = "Sequence[Value]"
LENGTHS = ("vec", "num")
"""Modifiers that say how many registers an operand has."""
NAMED = {
    OperandKind.ADDRESS: "Address", OperandKind.LABEL: "LabelRef", OperandKind.SYMBOL: "Symbol", OperandKind.CONSTANT: "int",
}  # fmt: skip


@dataclass(frozen=True)
class Modifier:
    """A modifier as a keyword: its values, and whether nothing but the author can say it."""

    values: tuple[str, ...]
    required: bool


@dataclass(frozen=True)
class Form:
    """A call: what it takes by position (name, type, whether it may be missing) and by keyword, and what it gives."""

    operands: tuple[tuple[str, str, bool], ...]
    modifiers: Mapping[str, Modifier]
    result: str
    summary: str

    @property
    def told_apart_by(self) -> tuple[object, ...]:
        """What a type checker sees of a call: forms that are equal in this are one."""
        operands = tuple(("scalar" if type in SCALARS else type, optional) for _, type, optional in self.operands)
        return (*operands, *(self.modifiers[name] for name in LENGTHS if name in self.modifiers))


def stub() -> str:
    """The text of the stub."""
    tree = ast.parse(Path(builder.__file__).read_text(encoding="utf-8"))
    declared = [ast.unparse(node) for node in _declarations(tree.body)]
    at = next(i for i, text in enumerate(declared) if text.startswith(f"class {KernelBuilder.__name__}("))
    declared[at] += "\n" + "\n".join(f"    {line}" for line in _instructions())
    docstring, *rest = declared
    return _tidy("\n".join([NOTE, docstring, IMPORTS, *rest]))


# What builder.py has


def _declarations(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements without what they do: classes, functions, what public attributes are, and the imports of those."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield _declared(node)
        elif isinstance(node, ast.ClassDef):
            docstring = node.body[:1] if ast.get_docstring(node) else []
            node.body = [*docstring, *_attributes(node), *_declarations(node.body[len(docstring) :])]
            yield node
        elif not isinstance(node, ast.If):  # under TYPE_CHECKING there is only what checkers are not to see
            yield node


def _declared(function: ast.FunctionDef) -> ast.FunctionDef:
    docstring = ast.get_docstring(function, clean=False)
    function.body = [ast.Expr(ast.Constant(... if docstring is None else docstring))]
    return function


def _attributes(owner: ast.ClassDef) -> Iterator[ast.stmt]:
    """What `__init__` makes of `self`, with its type, and what is said of it."""
    made = next((node.body for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), [])
    for node, following in zip(made, [*made[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            yield ast.AnnAssign(ast.Name(node.target.attr), node.annotation, None, 1)
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                yield following
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            name = node.targets[0].attr
            if not name.startswith("_"):
                raise ValueError(f"builder.py: say the type of self.{name} where {owner.name} makes it")


# The instructions


def _instructions() -> Iterator[str]:
    """The lines of a method for each name, but for those that the builder has itself."""
    own = {name for name in dir(KernelBuilder) if not name.startswith("_")}
    for name, rows in groupby(sorted(ROWS, key=lambda row: row.name), key=lambda row: row.name):
        spelt = f"{name}_" if iskeyword(name) else name
        if spelt in own:
            continue
        forms: dict[tuple[object, ...], Form] = {}
        for form in (form for row in rows for form in _forms(row)):
            key = form.told_apart_by
            forms[key] = _merged(forms[key], form) if key in forms else form
        for form in forms.values():
            if len(forms) > 1:
                yield "@overload"
            yield _method(spelt, form)
            yield DOCSTRING.fill(f'"""{form.summary}"""')


def _forms(row: Instruction) -> Iterator[Form]:
    """The calls of a row: one for each number of registers that it gives or takes."""
    length = next((slot for slot in row.modifiers if slot.name in LENGTHS), OpcodeSlot("", (), optional=True))
    chosen: list[tuple[str, ...]] = [(value,) for value in length.values] if row.destinations else [length.values]
    for values in [(), *filter(None, chosen)] if length.optional else chosen:
        settled = {length.name: values[0]} if values else {}
        modifiers = {slot.name: _modifier(slot, row) for slot in row.modifiers if slot is not length}
        if values:
            modifiers = {length.name: Modifier(values, True), **modifiers}
        operands = tuple((place.name, _taken(row, place, settled), place.optional) for place in row.sources)
        yield Form(operands, modifiers, _given(row, settled), " ".join(f"{row.summary} (PTX ISA {row.section})".split()))


def _modifier(slot: OpcodeSlot, row: Instruction) -> Modifier:
    settled = any(place.spec.names_type and place.spec.modifier == slot.name for place in row.operands)
    settled = settled or any(place.spec.holds_modifier == slot.name and is_packed(slot) for place in row.operands)
    return Modifier(slot.values, not (slot.optional or settled or slot.name in row.defaults))


def is_packed(slot: OpcodeSlot) -> bool:
    """Whether registers have types of their own for the elements that the modifier names."""
    return any(element_of(type) in slot.values for type in BY_NAME.values())


def _taken(row: Instruction, place: OperandPlace, chosen: Mapping[str, str]) -> str:
    spec = place.spec
    if spec.kind is not OperandKind.VALUE:
        return NAMED[spec.kind]
    if spec.braces == "shape" or spec.in_braces({"vec": "v1", **chosen}):
        return REGISTERS
    if spec.like:
        place = next(other for other in row.operands if other.name == spec.like)
        spec = place.spec
    values = next((slot.values for slot in row.modifiers if slot.name == spec.modifier), ())
    types = spec.types or tuple(BY_NAME[value] for value in values)
    if any(type.name in ("f32", "f64") for type in types):
        return NUMBER
    return WHOLE if any(not type.is_float and type.name != "pred" for type in types) else REGISTER


def _given(row: Instruction, chosen: Mapping[str, str]) -> str:
    places = [place for place in row.destinations if not place.optional]
    count = sum(place.spec.length({"vec": "v1", **chosen}) for place in places)
    if not count:
        return "None"
    return "Value" if count == 1 else f"tuple[{', '.join(['Value'] * count)}]"


def _merged(one: Form, other: Form) -> Form:
    """A form that takes what either takes. Where they differ in what they give, that is anything."""
    operands = tuple(
        (name, SCALARS[max(SCALARS.index(a), SCALARS.index(b))] if a in SCALARS else a, optional)
        for (name, a, optional), (_, b, _) in zip(one.operands, other.operands, strict=True)
    )
    modifiers = {
        name: reduce(_either, (form.modifiers.get(name, Modifier((), False)) for form in (one, other)))
        for name in {**one.modifiers, **other.modifiers}
    }
    results = {one.result, other.result}
    several = "tuple[Value, ...]" if all(result.startswith("tuple") for result in results) else "Any"
    return Form(operands, modifiers, one.result if len(results) == 1 else several, one.summary)


def _either(one: Modifier, other: Modifier) -> Modifier:
    return Modifier(tuple(dict.fromkeys((*one.values, *other.values))), one.required and other.required)


def _method(name: str, form: Form) -> str:
    places = [f"{place}: {type}{' = ...' if optional else ''}" for place, type, optional in form.operands]
    keywords = [
        f"{slot}: Literal[{', '.join(map(repr, modifier.values))}]{'' if modifier.required else ' = ...'}"
        for slot, modifier in form.modifiers.items()
    ]
    if form.result != "None":
        keywords.append("result: DType | None = ...")
    words = ["self", *places, *(["/"] if places else []), *(["*"] if keywords else []), *keywords]
    return f"def {name}({', '.join(words)}) -> {form.result}:"


def _tidy(text: str) -> str:
    """The same as ruff has it: unused imports left out, the others in order, in the project's format."""
    for command in (["check", "--quiet", "--select", "F401,I", "--fix"], ["format", "--quiet"]):
        tool = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(STUB), "-"]
        text = subprocess.run(tool, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
