"""PTX text -> Program. Instructions are told apart by the table alone; operands are fitted to rows in bind.py."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from ptxgen.emulator.bind import Raw, RawAddress, RawLiteral, RawName, RawPair, RawVector, bind
from ptxgen.emulator.declarations import LARGEST, LARGEST_VARIABLE, MOST_VARIABLES, DeclarationReader
from ptxgen.emulator.lexer import Token
from ptxgen.emulator.program import Call, Function, Guard, Label, Parameter, Program, SourceLine, Variable
from ptxgen.emulator.scopes import Scope
from ptxgen.isa.effects import Effect
from ptxgen.isa.instructions import decode
from ptxgen.isa.operands import Register
from ptxgen.types import PRED, DType

_SPACES = (".global", ".const", ".shared", ".local", ".param")
_LINKAGE = (".visible", ".weak", ".extern", ".common")
_TUNING = (
    ".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".maxclusterrank", ".explicitcluster",
    ".reqnctapercluster", ".noreturn", ".pragma", ".abi_preserve", ".abi_preserve_control", ".blocksareclusters",
)  # fmt: skip
_LINE_DIRECTIVES = (".version", ".target", ".address_size", ".file", ".loc")


@lru_cache(maxsize=16)
def parse(text: str) -> Program:
    """The program that `text` spells, kept for whoever asks next and changed by nobody. Every fault is a ParseError that names
    its line."""
    return _Parser(text).program()


class _Parser(DeclarationReader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.result = Program((0, 0), "")
        self.function: Function | None = None
        self.scopes: list[Scope] = []
        self.source: SourceLine | None = None

    # Module level
    def program(self) -> Program:
        while self.token.kind != "end":
            self.module_item()
        if self.result.version == (0, 0):
            raise self.fail("there is no .version directive")
        size = sum(v.size for v in self.result.variables.values() if v.space in ("global", "const"))
        if size > LARGEST_VARIABLE:
            raise self.fail(f"the variables of the module have {size} bytes, more than {LARGEST_VARIABLE}")
        return self.result

    def module_item(self) -> None:
        token = self.take("word")
        if token.text in _LINE_DIRECTIVES:
            self.line_directive(token)
        elif token.text == ".section":
            self.take("word")
            self.skip_braces()
        elif token.text in _LINKAGE or token.text in (".entry", ".func") or token.text in _SPACES:
            self.declaration(token)
        elif token.text in (".pragma", ".alias"):
            while not self.accept(";"):
                self.take()
        else:
            raise self.fail(f"{token.text!r} cannot stand outside a function", token.line)

    def line_directive(self, directive: Token) -> None:
        words = self.rest_of_line(directive.line)
        texts = [w.text for w in words]
        if directive.text == ".version":
            if not words or not re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}", texts[0]):
                raise self.fail(".version needs a number such as 9.0", directive.line)
            major, _, minor = texts[0].partition(".")
            self.result.version = (int(major), int(minor))
        elif directive.text == ".target":
            if not words:
                raise self.fail(".target needs a name such as sm_90", directive.line)
            self.result.target = texts[0]
        elif directive.text == ".address_size":
            if texts != ["64"]:
                raise self.fail(".address_size must be 64", directive.line)
        elif directive.text == ".file":
            if len(words) < 2 or words[0].kind != "number" or words[1].kind != "string":
                raise self.fail(".file needs a number and a name", directive.line)
            self.result.files[self.whole(words[0])] = texts[1].strip('"')
        else:
            if len(words) < 3 or any(w.kind != "number" for w in words[:3]):
                raise self.fail(".loc needs file, line and column", directive.line)
            self.source = SourceLine(self.whole(words[0]), self.whole(words[1]))

    def skip_braces(self) -> None:
        self.expect("{")
        depth = 1
        while depth:
            text = self.take().text
            depth += (text == "{") - (text == "}")

    def declaration(self, token: Token) -> None:
        external = False
        while token.text in _LINKAGE:
            external = external or token.text == ".extern"
            token = self.take("word")
        if token.text in (".entry", ".func"):
            self.function_declaration(token)
        elif token.text in _SPACES:
            for variable in self.variables(token.text[1:], external):
                self.add_variable(variable, self.result.variables, token.line)
        else:
            raise self.fail(f"{token.text!r} cannot follow a linking directive", token.line)

    def add_variable(self, variable: Variable, table: dict[str, Variable], line: int) -> None:
        if len(table) >= MOST_VARIABLES:
            raise self.fail(f"more than {MOST_VARIABLES} variables", line)
        if variable.name in table and not table[variable.name].external:
            raise self.fail(f"{variable.name} is declared twice", line)
        table[variable.name] = variable

    # Functions
    def function_declaration(self, keyword: Token) -> None:
        self.scopes, self.source = [Scope()], None
        function = Function("", keyword.text == ".entry", keyword.line)
        self.function = function
        if not function.is_entry and self.accept("("):
            function.results = self.parameters()
        function.name = self.take("word").text
        if self.accept("("):
            function.parameters = self.parameters()
        while self.token.text in _TUNING:
            self.tuning(function)
        function.is_defined = not self.accept(";")
        declared = self.result.functions.get(function.name)
        if declared is not None and declared.is_defined and function.is_defined:
            raise self.fail(f"function {function.name} is defined twice", keyword.line)
        if declared is None or function.is_defined:
            self.result.functions[function.name] = function  # before its body, which may call it
        if function.is_defined:
            self.expect("{")
            self.body(function)
        self.function = None

    def tuning(self, function: Function) -> None:
        """A directive between a function's parameters and its body. The two that say which blocks it runs with count."""
        word = self.take()
        numbers: list[int] = []
        while self.token.kind in ("number", "string") or self.token.text == ",":
            if self.token.kind == "number":
                numbers.append(self.integer())
            else:
                self.take()
        if self.token.text == ";" and self.tokens[self.position + 1].text == "{":
            self.take()
        if word.text in (".maxntid", ".reqntid"):
            if not 1 <= len(numbers) <= 3 or min(numbers) < 1:
                raise self.fail(f"{word.text} needs one to three numbers of at least 1", word.line)
            x, y, z = (*numbers, 1, 1)[:3]
            function.most_threads = x * y * z
            function.block = (x, y, z) if word.text == ".reqntid" else function.block

    def parameters(self) -> list[Parameter]:
        assert self.function is not None
        parameters: list[Parameter] = []
        offset = 0
        while not self.accept(")"):
            if parameters:
                self.expect(",")
            word = self.take("word")
            if word.text not in (".param", ".reg"):
                raise self.fail(f"a parameter starts with .param or .reg, not {word.text!r}", word.line)
            kind, length, alignment = self.type_and_alignment()
            name = self.take("word")
            if word.text == ".reg":
                parameters.append(Parameter(name.text, kind, 0, 1, offset, register=self.declare_register(name.text, kind)))
                continue
            count = self.dimensions()
            size = self.size_of(name, "param", kind, length, count)
            offset = -(-offset // alignment) * alignment
            parameters.append(Parameter(name.text, kind, size, alignment, offset, count is not None))
            offset += size
            if offset > LARGEST["param"]:
                raise self.fail(
                    f"the parameters up to {name.text} have {offset} bytes, more than {LARGEST['param']}", name.line
                )
        return parameters

    def declare_register(self, name: str, kind: DType, scope: Scope | None = None) -> Register:
        assert self.function is not None
        unique = self.declare_name(name, scope)
        register = Register(unique, kind)
        self.function.registers[unique] = register
        return register

    def declare_name(self, name: str, scope: Scope | None = None) -> str:
        assert self.function is not None
        unique, n = name, 1
        while unique in self.function.registers or unique in self.function.variables:
            unique, n = f"{name}'{n}", n + 1
        (scope or self.scopes[-1]).names[name] = unique
        return unique

    def look_up(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope.names:
                return scope.names[name]
            kind = scope.in_range(name)
            if kind is not None:
                return self.declare_register(name, kind, scope).name
        return name

    def body(self, function: Function) -> None:
        while self.scopes:
            if self.token.kind == "end":
                raise self.fail(f"the text ends inside function {function.name}")
            if self.accept("{"):
                self.scopes.append(Scope())
            elif self.accept("}"):
                self.scopes.pop()
            elif not self.accept(";"):
                self.statement(function)

    def statement(self, function: Function) -> None:
        token = self.token
        if token.text in _LINE_DIRECTIVES:
            self.line_directive(self.take())
        elif token.text == ".reg":
            self.register_declaration()
        elif token.text in _SPACES or token.text == ".extern":
            external = self.accept(".extern")
            space = self.take("word").text
            if space not in _SPACES:
                raise self.fail(f"{space!r} is not a state space", token.line)
            for variable in self.variables(space[1:], external):
                name = self.declare_name(variable.name)
                self.add_variable(replace(variable, name=name), function.variables, token.line)
        elif token.text == ".pragma":
            while not self.accept(";"):
                self.take()
        elif token.text == ".section":
            self.take()
            self.take("word")
            self.skip_braces()
        elif token.kind == "word" and self.tokens[self.position + 1].text == ":":
            self.label(function)
        else:
            self.instruction(function)

    def register_declaration(self) -> None:
        self.take()
        kind, _, _ = self.type_and_alignment()
        while True:
            name = self.take("word")
            repeat = self.repeat_count()
            if not name.text.startswith("%") and not re.match(r"[A-Za-z_$]", name.text):
                raise self.fail(f"{name.text!r} is not a register name", name.line)
            if repeat:
                self.scopes[-1].ranges[name.text] = repeat, kind
            else:
                self.declare_register(name.text, kind)
            if self.accept(";"):
                return
            self.expect(",")

    def label(self, function: Function) -> None:
        name = self.take("word")
        self.expect(":")
        if self.accept(".branchtargets"):
            targets = [self.take("word").text]
            while self.accept(","):
                targets.append(self.take("word").text)
            self.expect(";")
            function.branch_lists[name.text] = tuple(targets)
        elif self.token.text in (".callprototype", ".calltargets"):
            raise self.fail("indirect calls are not emulated")
        else:
            function.items.append(Label(name.text, name.line))

    def instruction(self, function: Function) -> None:
        line = self.token.line
        guard = None
        if self.accept("@"):
            negated = self.accept("!")
            name = self.look_up(self.take("word").text)
            if name not in function.registers:
                raise self.fail(f"guard {name} is not declared", line)
            if function.registers[name].type != PRED:
                raise self.fail(f"guard {name} is {function.registers[name].type}, and a guard is a pred", line)
            guard = Guard(function.registers[name], negated)
        opcode = self.take("word")
        candidates = decode(opcode.text)
        if not candidates:
            raise self.fail(f"unknown instruction {opcode.text}", opcode.line)
        if candidates[0][0].effect is Effect.CALL:
            function.items.append(self.call(function, guard, opcode))
            return
        operands: list[Raw] = []
        while not self.accept(";"):
            if operands:
                self.expect(",")
            operands.append(self.operand(function))
        step = bind(candidates, operands, guard, opcode, self.source, self.fail)
        function.items.append(step)

    def operand(self, function: Function) -> Raw:
        first = self.simple_operand(function)
        if not self.accept("|"):
            return first
        return RawPair((first, self.simple_operand(function)))

    def simple_operand(self, function: Function) -> Raw:
        token = self.token
        if self.accept("["):
            return self.address(function)
        if self.accept("{"):
            elements = [self.element(function)]
            while self.accept(","):
                elements.append(self.element(function))
            self.expect("}")
            return RawVector(tuple(elements))
        if self.accept("!"):
            return replace(self.name(function), negated=True)
        if token.kind == "number" or token.text in ("-", "+"):
            return self.literal()
        if token.kind == "word":
            return self.name(function)
        raise self.fail(f"{token.text!r} cannot stand as an operand")

    def element(self, function: Function) -> Raw:
        if self.token.text in ("{", "["):
            raise self.fail("a vector holds registers and numbers")
        return self.simple_operand(function)

    def name(self, function: Function) -> RawName:
        name = self.look_up(self.take("word").text)
        register = function.registers.get(name)
        offset = 0
        if register is None and self.token.text in ("+", "-"):
            offset = self.offset()
        return RawName(name, register, offset)

    def offset(self) -> int:
        total = 0
        while self.token.text in ("+", "-"):
            sign = -1 if self.take().text == "-" else 1
            total += sign * self.integer()
        return total

    def address(self, function: Function) -> RawAddress:
        if self.token.kind == "number":
            base: RawName | RawLiteral = self.literal()
            offset = 0
        else:
            name = self.name(function)
            base, offset = replace(name, offset=0), name.offset
        offset += self.offset()
        self.expect("]")
        return RawAddress(base, offset)

    def call(self, function: Function, guard: Guard | None, opcode: Token) -> Call:
        groups: list[list[Raw]] = []
        callee = ""
        while not self.accept(";"):
            if groups or callee:
                self.expect(",")
            if self.accept("("):
                group: list[Raw] = []
                while not self.accept(")"):
                    if group:
                        self.expect(",")
                    group.append(self.simple_operand(function))
                groups.append(group)
            elif not callee:
                callee = self.take("word").text
                groups.append([])  # what came before is the results
            else:
                raise self.fail("indirect calls are not emulated")
        declared = self.result.functions.get(callee)
        if declared is None:
            raise self.fail(f"call of {callee or 'nothing'}, which is not declared", opcode.line)
        marker = groups.index([]) if [] in groups else 0
        results, arguments = (groups[0] if marker else []), (groups[-1] if len(groups) > marker + 1 else [])
        for raw in [*results, *arguments]:
            if isinstance(raw, RawName) and raw.register is None and not self.is_memory(function, raw.name):
                raise self.fail(f"{raw.name} is not declared", opcode.line)
        names = []
        for result in results:
            if not isinstance(result, RawName):
                raise self.fail("a call returns into parameters or registers", opcode.line)
            names.append(result.name)
        plain = [a.plain() for a in arguments if isinstance(a, RawLiteral | RawName)]
        if len(plain) != len(arguments):
            raise self.fail("a call takes parameters, registers and constants", opcode.line)
        return Call(callee, tuple(names), tuple(plain), guard, opcode.line, self.source)

    def is_memory(self, function: Function, name: str) -> bool:
        """Whether it names a variable or a parameter."""
        own = (*function.parameters, *function.results)
        return name in function.variables or name in self.result.variables or any(p.name == name for p in own)
