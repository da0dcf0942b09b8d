"""PTX text -> Program: what stands at the level of the module. The bodies of functions are body.py's, operands are fitted to
rows in bind.py, and instructions are told apart by the table alone."""

from __future__ import annotations

import re
from functools import lru_cache

from ptxgen.emulator.body import LINE_DIRECTIVES, SPACES, BodyReader
from ptxgen.emulator.declarations import LARGEST, LARGEST_VARIABLE
from ptxgen.emulator.lexer import Token
from ptxgen.emulator.program import ParsedFunction, ParsedParameter, Program, SourceLine
from ptxgen.emulator.scopes import Names
from ptxgen.types import F16X2

_OF = {True: "an entry starts with .param", False: "a function starts with .param or .reg"}
_LINKAGE = (".visible", ".weak", ".extern", ".common")
_TUNING = (
    ".maxntid",
    ".reqntid",
    ".minnctapersm",
    ".maxnctapersm",
    ".maxnreg",
    ".maxclusterrank",
    ".explicitcluster",
    ".reqnctapercluster",
    ".noreturn",
    ".pragma",
    ".abi_preserve",
    ".abi_preserve_control",
    ".blocksareclusters",
)


@lru_cache(maxsize=16)
def parse(text: str) -> Program:
    """The program that `text` spells, kept for whoever asks next and changed by nobody. Every fault is a ParseError that names
    its line."""
    return _Parser(text).program()


class _Parser(BodyReader):
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
        if token.text in LINE_DIRECTIVES:
            self.line_directive(token)
        elif token.text == ".section":
            self.take("word")
            self.skip_braces()
        elif token.text in _LINKAGE or token.text in (".entry", ".func") or token.text in SPACES:
            self.declaration(token)
        elif token.text == ".pragma":
            self.pragma()
        elif token.text == ".alias":
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

    def declaration(self, token: Token) -> None:
        external = False
        if token.text in _LINKAGE:
            external = token.text == ".extern"
            token = self.take("word")
        if token.text in (".entry", ".func"):
            self.function_declaration(token)
        elif token.text in SPACES and token.text != ".param":
            for variable in self.variables(token.text[1:], external):
                self.add_variable(variable, self.result.variables, token.line)
        else:
            raise self.fail(f"{token.text!r} cannot be declared outside a function", token.line)

    # Functions
    def function_declaration(self, keyword: Token) -> None:
        function = self.function = ParsedFunction("", keyword.text == ".entry", keyword.line)
        self.names, self.source = Names(function, self.result.variables, self.fail), None
        if not function.is_entry and self.accept("("):
            function.results = self.parameters()
        function.name = self.identifier().text
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
            self.body()

    def tuning(self, function: ParsedFunction) -> None:
        """A directive between a function's parameters and its body. The two that say which blocks it runs with count."""
        word = self.take()
        numbers: list[int] = []
        while self.token.kind in ("number", "string") or self.token.text in (",", "WARP_SZ"):
            if self.token.kind == "number" or self.token.text == "WARP_SZ":
                numbers.append(self.integer())
            else:
                self.take()
        if self.token.text == ";" and self.following.text == "{":
            self.take()
        if word.text in (".maxntid", ".reqntid"):
            if not 1 <= len(numbers) <= 3 or min(numbers) < 1:
                raise self.fail(f"{word.text} needs one to three numbers of at least 1", word.line)
            x, y, z = (*numbers, 1, 1)[:3]
            function.most_threads = x * y * z
            function.block = (x, y, z) if word.text == ".reqntid" else function.block

    def parameters(self) -> list[ParsedParameter]:
        parameters: list[ParsedParameter] = []
        offset = 0
        while not self.accept(")"):
            if parameters:
                self.expect(",")
            word = self.take("word")
            if word.text not in ((".param",) if self.function.is_entry else (".param", ".reg")):
                raise self.fail(f"a parameter of {_OF[self.function.is_entry]}, not {word.text!r}", word.line)
            kind, length, alignment = self.type_and_alignment()
            name = self.identifier()
            if word.text == ".reg" and not self.function.is_entry:
                register = self.names.declare_register(name.text, kind, name.line)
                parameters.append(ParsedParameter(name.text, kind, 0, 1, offset, register=register))
                continue
            self.names.declare_parameter(name.text, name.line)
            shape = self.dimensions()
            size = self.size_of(name, "param", kind, length, shape)
            if self.function.is_entry and (len(shape) > 1 or not size or (not shape and (length > 1 or kind == F16X2))):
                raise self.fail(f"{name.text} cannot be a parameter of an entry: write .b8 {name.text}[{size or 1}]", name.line)
            offset = -(-offset // alignment) * alignment
            parameters.append(ParsedParameter(name.text, kind, size, alignment, offset, bool(shape)))
            offset += size
            if offset > LARGEST["param"]:
                raise self.fail(
                    f"the parameters up to {name.text} have {offset} bytes, more than {LARGEST['param']}", name.line
                )
        return parameters
