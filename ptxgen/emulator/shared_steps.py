"""The vector instructions of a kernel as calls of functions that all kernels share, for code that is wanted soon.

Most of the time that LLVM takes for a kernel goes into instructions of 32 lanes, and these are the same few hundred in all
kernels. Here each becomes the call of a step: a function with its operands in memory, compiled once in a process. What is left
of the kernel are numbers, calls and jumps, which LLVM has a quick way for. 32 predicates are a word of 32 bits there."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from ptxgen.emulator import codegen
from ptxgen.emulator.emitter import vector
from ptxgen.errors import PtxGenError

_WORD = vector("i1")
_BYTES = {vector(f"i{8 * size}"): 32 * size for size in (1, 2, 4, 8, 16)}
_BYTES |= {vector("half"): 64, vector("bfloat"): 64, vector("float"): 128, vector("double"): 256, _WORD: 64}
_WORDS = {"splat (i1 true)": "-1", "splat (i1 false)": "0", "zeroinitializer": "0"}

_FUNCTION = re.compile(r"^define [^@]*@([\w.]+)\(.*?^}$", re.MULTILINE | re.DOTALL)
_DECLARATION = re.compile(r"^declare [^@]*@([\w.]+)\(.*$", re.MULTILINE)
_CALLED = re.compile(r"@([\w.]+)")
_NAME = re.compile(r"%[\w.]+")
_BLOCK = re.compile(r"b\d+:")
_FLOAT = "half|bfloat|float|double"
_STEPS = re.compile(rf"<32 x|\b(?:{_FLOAT})\b")
"""What LLVM has no quick way for, or puts numbers into memory for that may be too far away."""
_CONVERTED = re.compile(r"(?!call|load)\w+ .* to (.*)")
_CHOSEN = re.compile(rf"select .*?, (<32 x \w+>|{_FLOAT}) ")
_TYPE = re.compile(r"\w+ (?:volatile )?(<32 x \w+>|\{ [^}]* \}|\w+)")
_NUMBER = re.compile(rf"\b(?:i\d+|{_FLOAT})\b")
_LANE = re.compile(r"insertelement <32 x (\w+)> poison, \w+ (\S+), i32 0")
_LANES = re.compile(r"shufflevector <32 x \w+> (%[\w.]+), <32 x \w+> poison, <32 x i32> zeroinitializer")
_PREDICATES = re.compile(r"<[^>]*>|[^, ][^,]*")
_OPERAND = re.compile(rf"<i\d+ [^>]*>|splat \((i\d+) (-?\d+)\)|(?:\b(i\d+|ptr|{_FLOAT}) )?(%[\w.]+)|\b(i\d+) (-?\d+)(?=[,)])")
"""A number for each lane, one for all, a name (with its type, unless that is a vector), a number."""


class _Line(NamedTuple):
    """An instruction: its result or nothing, what it says, its opcode and the names in it. Of a label, all is empty."""

    whole: str
    result: str
    text: str
    opcode: str
    names: list[str]

    @classmethod
    def read(cls, line: str) -> _Line:
        if not line.startswith("  "):
            return cls(line, "", "", "", [])
        result, _, text = line[2:].rpartition(" = ")
        return cls(line, result, text, text.partition(" ")[0], _NAME.findall(text))


class _Called(NamedTuple):
    """A step as it is called: its name, what it returns, the type of its result, and its arguments: their types, and the place
    of the name among those of the instruction, or the number."""

    name: str
    returned: str
    kind: str
    arguments: list[tuple[str, int | str]]


class SharedStep(NamedTuple):
    """A function that kernels share: its name, which its text decides, its declaration, and the LLVM module with it."""

    name: str
    declaration: str
    module: str


@cache
def code(step: SharedStep) -> bytes:
    """The object code of a step."""
    return codegen.build(step.module, quickly=True)


def shared(module: str) -> tuple[str, list[SharedStep]]:
    """The LLVM module of a kernel, with calls of steps for what its function @warp does with vectors, and these steps."""
    kernel = _Kernel(module)
    return kernel.text(), list(kernel.steps.values())


class _Kernel:
    """A kernel while its lines are written anew. In the block in progress, `places` names the memory of vectors, and of several
    as one value; `words` has predicates; `splats` the type and name of the number that all lanes are, `lanes` of one that is to
    be in all."""

    def __init__(self, module: str) -> None:
        self.functions = {found[1]: found[0] for found in _FUNCTION.finditer(module)}
        self.declarations = {found[1]: found[0] for found in _DECLARATION.finditer(module)}
        self.steps: dict[str, SharedStep] = {}
        self.known: dict[tuple[str, ...], _Called] = {}
        self.lines: list[str] = []
        self.slots: defaultdict[int, int] = defaultdict(int)  # how many there are, by their bytes

    def text(self) -> str:
        """The module."""
        head, _, *lines = self.functions["warp"].splitlines()
        starts = [0, *(i for i, line in enumerate(lines) if _BLOCK.fullmatch(line)), len(lines)]
        for first, last in pairwise(starts):
            self.block(lines[first:last])
        slots = [f"  {_slot(size, k)} = alloca i8, i32 {size}, align 64" for size, n in self.slots.items() for k in range(n)]
        called = {name for line in self.lines for name in _CALLED.findall(line)}
        declared = [line for name, line in self.declarations.items() if name in called]
        declared += [step.declaration for step in self.steps.values()]
        head = head.replace(") {", ') nounwind "no-jump-tables"="true" {')  # no data, as `small` of `build` wants it
        return "\n".join([*declared, head, "entry:", *slots, *self.lines, "!0 = !{}", ""])

    def block(self, lines: list[str]) -> None:
        """Write a block, which has no vectors but its own. A slot is free again once what it holds has been read."""
        self.places: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.words: dict[str, str] = {}
        self.splats: dict[str, tuple[str, str]] = {}
        self.lanes: dict[str, tuple[str, str]] = {}
        self.free = {size: [_slot(size, k) for k in range(n)] for size, n in self.slots.items()}
        self.taken: dict[str, tuple[int, str]] = {}
        read = [_Line.read(line) for line in lines]
        ends = _ends(read)
        for i, line in enumerate(read):
            if not line.opcode or line.opcode in ("alloca", "getelementptr") or not _STEPS.search(line.whole):
                self.lines.append(line.whole)
                continue
            for name in ends.get(i, ()):
                if name in self.taken:
                    size, slot = self.taken.pop(name)
                    self.free[size].append(slot)
            if not self.written(line):
                self.call(line)

    def written(self, line: _Line) -> bool:
        """Write what needs no step; False if it needs one."""
        _, result, text, opcode, names = line
        if opcode == "extractvalue":
            whole, index = names[0], int(text.rpartition(", ")[2])
            members = _members(self.kinds[whole])
            offset = sum(_BYTES[kind] for kind in members[:index])
            self.places[result], self.kinds[result] = result, members[index]
            self.lines.append(f"  {result} = getelementptr i8, ptr {self.places[whole]}, i64 {offset}")
            if members[index] == _WORD:
                self.words[result] = f"{result}.w"
                self.lines.append(f"  {result}.w = load i32, ptr {result}, align 64")
        elif opcode == "bitcast" and text.endswith(f" to {_WORD}"):
            self.words[result] = text.split()[2]
        elif opcode == "bitcast" and text.startswith(f"bitcast {_WORD} "):
            self.lines.append(f"  {result} = or i32 {self.word(text[len(f'bitcast {_WORD} ') : -len(' to i32')])}, 0")
        elif opcode == "bitcast" and names and names[0] in self.places:
            self.places[result], self.kinds[result] = self.places[names[0]], text.rpartition(" to ")[2]
        elif opcode in ("and", "or", "xor") and _WORD in text:
            left, right = _PREDICATES.findall(text, len(f"{opcode} {_WORD} "))
            self.lines.append(f"  {result} = {opcode} i32 {self.word(left)}, {self.word(right)}")
            self.words[result] = result
        elif opcode == "insertelement" and (lane := _LANE.fullmatch(text)):
            self.lanes[result] = lane[1], lane[2]
        elif opcode == "shufflevector" and (lanes := _LANES.fullmatch(text)) and lanes[1] in self.lanes:
            self.splats[result] = type, number = self.lanes[lanes[1]]
            if type == "i1":
                self.lines.append(f"  {result} = sext i1 {number} to i32")
                self.words[result] = result
        else:
            return False
        return True

    def word(self, predicates: str) -> str:
        """32 predicates as LLVM spells a number."""
        if predicates.startswith("<"):
            return str(sum(("true" in one) << lane for lane, one in enumerate(predicates.split(","))))
        return self.words.get(predicates) or _WORDS[predicates]

    def call(self, line: _Line) -> None:
        """Write the call of a step instead of an instruction."""
        held = [self.held(name) for name in line.names]
        key = (_NAME.sub("%", line.text), *(kind for kind, _ in held))
        called = self.known.get(key)
        if called is None:
            called = self.known[key] = self.define(line, [kind for kind, _ in held])
        given = [f"{type} {held[which][1] if isinstance(which, int) else which}" for type, which in called.arguments]
        if called.kind == _WORD:
            self.words[line.result] = line.result
        elif called.kind[0] in "<{":
            given.append(f"ptr {self.place(line.result, called.kind)}")
        text = f"call {called.returned} @{called.name}({', '.join(given)})"
        self.lines.append(f"  {text}" if called.returned == "void" else f"  {line.result} = {text}")

    def held(self, name: str) -> tuple[str, str]:
        """How a name is held, and what is passed for it: `word`, the type of a number that all lanes are, the LLVM type of what
        is in memory, or nothing for what is a number itself."""
        if name in self.words:
            return "word", self.words[name]
        if name in self.splats:
            return self.splats[name]
        if name in self.places:
            return self.kinds[name], self.places[name]
        return "", name

    def define(self, line: _Line, held: list[str]) -> _Called:
        """The step that does what an instruction says, of operands that are held so."""
        text, opcode = line.text, line.opcode
        before: list[str] = []
        arguments: list[tuple[str, int | str]] = []
        numbers = opcode == "call" and "@llvm." not in text
        splats = opcode not in ("shl", "lshr", "ashr", "udiv", "urem")  # much more is made of these where they are known
        places = iter(range(len(held)))

        def parameter(type: str, argument: int | str) -> str:
            arguments.append((type, argument))
            return f"%p{len(arguments) - 1}"

        def value(text: str) -> str:
            before.append(f"%a{len(arguments)} = {text}")
            return f"%a{len(arguments)}"

        def everywhere(type: str, argument: int | str) -> str:
            number, lane, kind = parameter(type, argument), f"%l{len(arguments)}", vector(type)
            before.append(f"{lane} = insertelement {kind} poison, {type} {number}, i32 0")
            return value(f"shufflevector {kind} {lane}, {kind} poison, <32 x i32> zeroinitializer")

        def operand(found: re.Match[str]) -> str:
            splat_type, splat, type, name, number_type, number = found.groups()
            if name is not None:
                place = next(places)
                if held[place] == "word":
                    return value(f"bitcast i32 {parameter('i32', place)} to {_WORD}")
                if held[place][:1] in ("<", "{"):
                    return value(f"load {held[place]}, ptr {parameter('ptr', place)}, align 64")
                if held[place]:
                    return everywhere(held[place], place)
                return f"{type} {parameter(type, place)}" if type else parameter(_NUMBER.findall(text)[0], place)
            if splats and splat is not None and splat_type != "i1":
                return everywhere(splat_type, splat)
            if numbers and number is not None:
                return f"{number_type} {parameter(number_type, number)}"
            return found[0]

        done, kind = _OPERAND.sub(operand, text), _kind(text, opcode)
        types = [type for type, _ in arguments]
        if kind == "void":
            returned, after = kind, ["ret void"]
        elif kind == _WORD:
            returned, after = "i32", [f"%w = bitcast {kind} %r to i32", "ret i32 %w"]
        elif kind[0] in "<{":
            returned, after = "void", [*_stores(kind, f"%p{len(types)}"), "ret void"]
            types.append("ptr")
        else:
            returned, after = kind, [f"ret {kind} %r"]
        name = self.step(returned, types, [*before, done if kind == "void" else f"%r = {done}", *after])
        return _Called(name, returned, kind, arguments)

    def place(self, result: str, kind: str) -> str:
        """Memory for a result."""
        size = sum(_BYTES[member] for member in _members(kind))
        if not self.free.setdefault(size, []):
            self.free[size].append(_slot(size, self.slots[size]))
            self.slots[size] += 1
        self.places[result], self.kinds[result] = self.free[size].pop(), kind
        self.taken[result] = size, self.places[result]
        return self.places[result]

    def step(self, returned: str, types: list[str], lines: list[str]) -> str:
        """The name of the step with these lines, which the kernel is linked with."""
        body = "\n  ".join(lines)
        needed = self.needed(body)
        text = f"({', '.join(f'{type} %p{i}' for i, type in enumerate(types))}) {{\n  {body}\n}}\n"
        name = f"step.{hashlib.sha256('|'.join([*needed, returned, text]).encode()).hexdigest()[:32]}"
        if name not in self.steps:
            defined = "\n".join([*needed, f"define {returned} @{name}{text}"])
            self.steps[name] = SharedStep(name, f"declare {returned} @{name}({', '.join(types)})", defined)
        return name

    def needed(self, body: str) -> list[str]:
        """The functions that a step calls, and the declarations of those elsewhere."""
        found: dict[str, str] = {}
        work = _CALLED.findall(body)
        while work:
            name = work.pop()
            if name not in found and name in self.functions:
                found[name] = _renamed(self.functions[name])
                work += _CALLED.findall(found[name])
            elif name not in found:
                found[name] = self.declarations[name]
        return [found[name] for name in sorted(found)]


def _ends(lines: list[_Line]) -> dict[int, list[str]]:
    """By the number of the line that reads it last, what lies in memory. What is read in another piece between labels than the
    one that made it may be read there again, and so has no such line."""
    owner: dict[str, str] = {}
    made: dict[str, int] = {}
    last: dict[str, int | None] = {}
    piece = 0
    for i, line in enumerate(lines):
        if not line.opcode:
            piece += 1
        for name in line.names:
            name = owner.get(name, name)
            last[name] = i if made.get(name) == piece and last.get(name, i) is not None else None
        if line.result:
            made[line.result] = piece
            if line.opcode in ("extractvalue", "bitcast") and line.names:
                owner[line.result] = owner.get(line.names[0], line.names[0])
    ends: defaultdict[int, list[str]] = defaultdict(list)
    for name, end in last.items():
        if end is not None:
            ends[end].append(name)
    return ends


def _kind(text: str, opcode: str) -> str:
    """The LLVM type of what an instruction gives."""
    if opcode == "store":
        return "void"
    if opcode in ("icmp", "fcmp"):
        return _WORD if "<32 x" in text else "i1"
    if opcode == "extractelement":
        return text.split()[3].removesuffix(">")
    found = _CONVERTED.fullmatch(text) or _CHOSEN.match(text) or _TYPE.match(text)
    if found is None:
        raise PtxGenError(f"the emulator wrote an instruction whose result is not known: {text}")
    return found[1]


def _members(kind: str) -> list[str]:
    """The vectors of a value of several, or the one that it is."""
    return kind[2:-2].split(", ") if kind.startswith("{") else [kind]


def _slot(size: int, number: int) -> str:
    return f"%slot.{size}.{number}"


def _stores(kind: str, place: str) -> list[str]:
    """Lines that put %r into memory."""
    if not kind.startswith("{"):
        return [f"store {kind} %r, ptr {place}, align 64"]
    lines, offset = [], 0
    for i, member in enumerate(_members(kind)):
        lines.append(f"%r{i} = extractvalue {kind} %r, {i}")
        lines.append(f"%at{i} = getelementptr i8, ptr {place}, i64 {offset}")
        if member == _WORD:
            lines.append(f"%w{i} = bitcast {member} %r{i} to i32")
        lines.append(f"store {'i32 %w' if member == _WORD else f'{member} %r'}{i}, ptr %at{i}, align 64")
        offset += _BYTES[member]
    return lines


def _renamed(function: str) -> str:
    """A function with its values numbered from 0, so that it is the same text in every kernel."""
    names: dict[str, str] = {}
    return _NAME.sub(lambda found: names.setdefault(found[0], f"%n{len(names)}"), function)
