"""Reads the body of a function: its declarations, labels, and instructions with their operands. What stands around it is
parse.py's."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ptxgen.emulator.bind import CODE, Raw, RawAddress, RawName, RawPair, RawVector, bind
from ptxgen.emulator.constants import Constant
from ptxgen.emulator.declarations import MOST_VARIABLES, DeclarationReader
from ptxgen.emulator.lexer import Token
from ptxgen.emulator.program import (
    SINK,
    Call,
    Guard,
    ParsedFunction,
    ParsedLabel,
    ParsedOperand,
    ParsedParameter,
    SourceLine,
    Variable,
)
from ptxgen.emulator.scopes import Names
from ptxgen.isa.effects import BRANCHES, Effect
from ptxgen.isa.instructions import decode
from ptxgen.isa.operands import LabelRef, Register
from ptxgen.types import B32, PRED, DType

SPACES = (".global", ".const", ".shared", ".local", ".param")
LINE_DIRECTIVES = (".version", ".target", ".address_size", ".file", ".loc")
_INDIRECT = (".callprototype", ".calltargets")
_SINK = RawName(SINK, None)
_INDIRECT_CALL = "indirect calls are not emulated"
_MOST_TARGETS = 1 << 12


class Memory(NamedTuple):
    """A variable or parameter: its name in the function, its space, the type of its elements."""

    name: str
    space: str
    type: DType


class BodyReader(DeclarationReader):
    """Reads what stands between the braces of a function."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.function = ParsedFunction("", False, 0)
        self.names = Names(self.function, self.result.variables, self.fail)
        self.source: SourceLine | None = None

    def body(self) -> None:
        """Read up to the brace that ends the function."""
        while self.names.scopes:
            if self.token.kind == "end":
                raise self.fail(f"the text ends inside function {self.function.name}")
            if self.accept("{"):
                self.names.open()
            elif self.accept("}"):
                self.names.close()
            else:
                self.statement()
        self.names.resolve()

    def statement(self) -> None:
        """Read a directive, a declaration, a label or an instruction."""
        token = self.token
        if token.text in LINE_DIRECTIVES:
            self.line_directive(self.take())
        elif token.text == ".reg":
            self.register_declaration()
        elif token.text in SPACES:
            self.take()
            self.local_variables(token)
        elif self.accept(".pragma"):
            self.pragma()
        elif token.text == ".section":
            self.take()
            self.take("word")
            self.skip_braces()
        elif token.kind == "word" and self.following.text == ":":
            self.label()
        else:
            self.instruction()

    def line_directive(self, directive: Token) -> None:
        """Read a directive that ends with its line."""
        raise NotImplementedError

    def skip_braces(self) -> None:
        """Read over braces and all that they hold."""
        self.expect("{")
        depth = 1
        while depth:
            text = self.take().text
            depth += (text == "{") - (text == "}")

    def pragma(self) -> None:
        """Read over the texts that follow `.pragma`."""
        self.take("string")
        while self.accept(","):
            self.take("string")
        self.expect(";")

    def local_variables(self, space: Token) -> None:
        """Read a function's own variables. Constant and global ones live as long as the module, and so are the module's."""
        of_module = space.text in (".global", ".const")
        table = self.result.variables if of_module else self.function.variables
        for variable in self.variables(space.text[1:], external=False):
            name = self.names.declare(variable.name, space.line)
            self.add_variable(replace(variable, name=name), table, space.line)

    def add_variable(self, variable: Variable, table: dict[str, Variable], line: int) -> None:
        """Note a variable of the module or of the function."""
        if len(table) >= MOST_VARIABLES:
            raise self.fail(f"more than {MOST_VARIABLES} variables", line)
        if variable.name in table and not table[variable.name].external:
            raise self.fail(f"{variable.name} is declared twice", line)
        table[variable.name] = variable

    def register_declaration(self) -> None:
        """Read `.reg .b32 %a, %r<10>;`."""
        self.take()
        kind, length, _ = self.type_and_alignment()
        if length > 1:
            raise self.fail(f"a register of {length} elements is not emulated")
        while True:
            name = self.identifier()
            repeat = self.repeat_count()
            if repeat:
                self.names.declare_range(name.text, repeat, kind, name.line)
            else:
                self.names.declare_register(name.text, kind, name.line)
            if self.accept(";"):
                return
            self.expect(",")

    def label(self) -> None:
        """Read a label, and the list of labels or functions that it may name."""
        name = self.identifier()
        self.expect(":")
        if self.accept(".branchtargets"):
            targets = self.target_names()
            while self.accept(","):
                targets += self.target_names()
            self.expect(";")
            self.names.declare_list(name.text, tuple(targets), name.line)
        elif self.token.text in _INDIRECT:
            self.names.declare_other(name.text, name.line)
            functions = self.take().text == ".calltargets"
            while not self.accept(";"):
                word = self.take()
                if functions and word.kind == "word" and word.text not in self.result.functions:
                    raise self.fail(f"{word.text} is not a function", word.line)
        else:
            self.function.items.append(ParsedLabel(self.names.declare_label(name.text, name.line), name.line))

    def target_names(self) -> list[str]:
        """Read a label of a list, or `L<3>` for L0, L1 and L2."""
        name = self.take("word")
        count = self.repeat_count()
        if count > _MOST_TARGETS:
            raise self.fail(f"{count} labels are too many; at most {_MOST_TARGETS}", name.line)
        return [f"{name.text}{i}" for i in range(count)] if count else [name.text]

    def instruction(self) -> None:
        """Read an instruction."""
        guard = self.guard()
        opcode = self.take("word")
        while self.token.kind == "word" and self.token.text.startswith("."):  # mov .u32 is mov.u32
            opcode = Token("word", opcode.text + self.take().text, opcode.line)
        candidates = decode(opcode.text)
        if not candidates:
            raise self.fail(f"unknown instruction {opcode.text}", opcode.line)
        if candidates[0][0].effect is Effect.CALL:
            self.function.items.append(self.call(guard, opcode))
            return
        operands: list[Raw] = []
        while not self.accept(";"):
            if operands:
                self.expect(",")
            operands.append(self.operand())
        step = bind(candidates, operands, guard, opcode, self.source, self.fail)
        if step.row.effect in BRANCHES:
            self.names.jump(step, next(o.name for o in step.operands.values() if isinstance(o, LabelRef)))
        self.function.items.append(step)

    def guard(self) -> Guard | None:
        """Read `@%p` or `@!%p`, if it is next."""
        line = self.token.line
        if not self.accept("@"):
            return None
        negated = self.accept("!")
        name = self.take("word").text
        register = self.register_named(name)
        if register is None:
            raise self.fail(f"guard {name} is not declared", line)
        if register.type != PRED:
            raise self.fail(f"guard {name} is {register.type}, and a guard is a pred", line)
        return Guard(register, negated)

    # Operands
    def operand(self) -> Raw:
        """Read an operand, or a pair `a|b`."""
        first = self.simple_operand()
        if not self.accept("|"):
            return first
        return RawPair((first, self.simple_operand()))

    def simple_operand(self) -> Raw:
        """Read an operand that is no pair."""
        if self.token.kind == "word" and self.token.text != "WARP_SZ":
            return self.name()
        if self.accept("["):
            return self.address()
        if self.accept("{"):
            elements = [self.element()]
            while self.accept(","):
                elements.append(self.element())
            self.expect("}")
            return RawVector(tuple(elements))
        if self.token.text == "!" and self.following.kind == "word" and self.following.text != "WARP_SZ":
            self.take()
            return replace(self.name(), negated=True)
        if self.at_constant:
            return self.constant()
        raise self.fail(f"{self.token.text!r} cannot stand as an operand")

    def element(self) -> Raw:
        """Read an element of a vector."""
        if self.token.text in ("{", "["):
            raise self.fail("a vector holds registers and numbers")
        return self.simple_operand()

    def name(self) -> RawName:
        """Read a name, with what is added to it: `name+4`, or the index of an element, `name[1]`."""
        line = self.token.line
        spelt = self.take("word").text
        register = self.register_named(spelt)
        if register is not None:
            return RawName(spelt, register, self.offset())
        memory = self.memory_named(spelt)
        if not self.accept("["):
            name, space = (spelt, CODE if spelt in self.result.functions else "") if memory is None else memory[:2]
            return RawName(name, None, self.offset(), space=space)
        if memory is None:
            raise self.fail(f"{spelt} is no variable, so it has no elements", line)
        if not self.at_constant:
            raise self.fail(f"an index that is no constant is not emulated, got {self.token.text!r}")
        index = self.integer_constant()
        self.expect("]")
        return RawName(memory.name, None, index * memory.type.bytes, space=memory.space, is_element=True)

    def register_named(self, name: str) -> Register | None:
        """The register that is called so here."""
        unique = self.names.look_up(name)
        return None if unique is None else self.function.registers.get(unique)

    def variable_named(self, name: str) -> str:
        """The unique name of the variable or parameter that is called so here."""
        return self.names.look_up(name) or name

    def memory_named(self, name: str) -> Memory | None:
        """The variable or parameter that is called so here."""
        unique = self.names.look_up(name)
        variable = self.function.variables.get(unique or "") or self.result.variables.get(unique or name)
        if variable is not None:
            return Memory(variable.name, variable.space, variable.type)
        own = (*self.function.parameters, *self.function.results)
        return next((Memory(p.name, "param", p.type) for p in own if p.name == unique), None)

    def offset(self) -> int:
        """Read `+` and a constant expression, in bytes; 0 where there is none."""
        if self.token.text == "-":
            raise self.fail("an offset follows a plus sign; write a negative one as +-4")
        return self.integer_constant() if self.accept("+") else 0

    def address(self) -> RawAddress:
        """Read what follows the `[` of an address."""
        if self.at_constant:
            raw = RawAddress(self.constant(), 0)
        elif self.token.kind == "word":
            line, name = self.token.line, self.name()
            if name.register is None and not name.space:
                raise self.fail(f"{name.name} is not declared", line)
            raw = RawAddress(name, name.offset)
        else:
            raise self.fail(f"an address starts with a register, a variable or a number, not {self.token.text!r}")
        self.expect("]")
        return raw

    def call(self, guard: Guard | None, opcode: Token) -> Call:
        """Read what follows `call`: `(results), callee, (arguments)`, the first and the last of which may be missing."""
        results: list[Raw] = []
        if self.token.text == "(":
            results = self.group()
            self.expect(",")
        callee = self.take("word").text
        arguments: list[Raw] = []
        if self.accept(","):
            arguments = self.group()
        if not self.accept(";"):
            raise self.fail(_INDIRECT_CALL, opcode.line)
        declared = self.result.functions.get(callee)
        if declared is None:
            indirect = self.register_named(callee) is not None
            raise self.fail(_INDIRECT_CALL if indirect else f"call of {callee}, which is not declared", opcode.line)
        for raw in [*(raw for raw in results if raw != _SINK), *arguments]:
            if isinstance(raw, RawName) and raw.register is None and not raw.space:
                raise self.fail(f"{raw.name} is not declared", opcode.line)
        names = []
        for result in results:
            if not isinstance(result, RawName):
                raise self.fail("a call returns into parameters or registers", opcode.line)
            names.append(result.name if result.register is None else result.register.name)
        parameters = [*declared.parameters, *(None for _ in arguments)]
        plain = [self.argument(raw, parameter, opcode.line) for raw, parameter in zip(arguments, parameters, strict=False)]
        return Call(callee, tuple(names), tuple(plain), guard, opcode.line, self.source)

    def group(self) -> list[Raw]:
        """Read operands in parentheses."""
        self.expect("(")
        group: list[Raw] = []
        while not self.accept(")"):
            if group:
                self.expect(",")
            group.append(self.simple_operand())
        return group

    def argument(self, raw: Raw, parameter: ParsedParameter | None, line: int) -> ParsedOperand:
        """What is passed for a parameter; None for one that is not declared."""
        if isinstance(raw, Constant):
            kind = B32 if parameter is None else parameter.type
            if not raw.fits(kind):
                raise self.fail(
                    f"argument {parameter and parameter.name} is {kind} and cannot be {raw}: {raw.fault(kind)}", line
                )
            return raw.operand(kind)
        if isinstance(raw, RawName) and not raw.offset and not raw.negated:
            return raw.plain()
        raise self.fail(f"a call takes parameters, registers and constants, not {raw}", line)
