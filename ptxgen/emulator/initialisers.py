"""Reads the initial values of variables (PTX ISA 5.4.4): constants, the addresses of other variables, single bytes of those."""

from __future__ import annotations

from ptxgen.emulator.constants import Constant, ConstantReader, integer
from ptxgen.emulator.program import Initial, Pointer, Program
from ptxgen.types import U8, U32, U64, DType

_BYTE = 0xFF
_OF_ADDRESSES = (U32, U64)
_OF_MASKED = (U8, U32, U64)


class InitialReader(ConstantReader):
    """Reads what follows the `=` of a declaration of a variable."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.result = Program((0, 0), "")

    def variable_named(self, name: str) -> str:
        """The name in the module of what is called so here."""
        return name

    def initial(self, kind: DType, shape: list[int], vector: int, own: str) -> Initial:
        """Read the initial value of the variable `own`: an array of this shape (its first number may be 0: as many as there
        are), of vectors of this length."""
        if kind.is_float and kind.name not in ("f32", "f64"):
            raise self.fail(f"{own} is .{kind}, which takes no initial value")
        value = Initial()
        value.count = self._level(value, kind, [*shape, *([vector] if vector > 1 else [])], vector > 1, own)
        return value

    def _level(self, value: Initial, kind: DType, shape: list[int], of_vectors: bool, own: str) -> int:
        """Read an element, or those in a pair of braces for each number of the shape; returns how many. Those that braces leave
        out are no gap: as the assembler has it, {{1}, {2}} is 1 and 2 in the first row."""
        if not shape:
            self._element(value, kind, own)
            return 1
        if self.token.text != "{":
            raise self.fail(f"the initial value of {own} has {len(shape)} more levels of braces, got {self.token.text!r}")
        self.expect("{")
        count = 0
        while not self.accept("}"):
            if count:
                self.expect(",")
            if count == shape[0] and count:
                raise self.fail(f"{own} is given more than {count} elements in a pair of braces")
            self._level(value, kind, shape[1:], of_vectors, own)
            count += 1
        if of_vectors and len(shape) == 1 and count != shape[0]:
            raise self.fail(f"{own} has vectors of {shape[0]}, and one is given {count} elements")
        return count

    def _element(self, value: Initial, kind: DType, own: str) -> None:
        if self.token.kind == "word" and self.token.text != "WARP_SZ":
            if kind not in _OF_ADDRESSES:
                raise self.fail(f"{own} is .{kind}; an address is .u64 or .u32")
            self._pointer(value, kind.bytes, own)
        elif self.token.kind == "number" and self.following.text == "(":
            self._masked(value, kind, own)
        else:
            self._put(value, self.constant(), kind, own)

    def _put(self, value: Initial, constant: Constant, kind: DType, own: str) -> None:
        if not constant.initialises(kind):
            raise self.fail(f"{own} is .{kind} and cannot be {constant}: {constant.fault(kind)}")
        value.data += constant.bits(kind).to_bytes(kind.bytes, "little")

    def _masked(self, value: Initial, kind: DType, own: str) -> None:
        """Read `0xFF00(name)`: the byte of an address, or of a number, where the mask has ones."""
        mask = int(self._primary().value) & ((1 << 64) - 1)
        byte = next((i for i in range(8) if mask == _BYTE << 8 * i), None)
        if byte is None:
            raise self.fail(f"the mask {mask:#x} is not 0xFF, 0xFF00 and so on: eight ones that are a byte")
        self.expect("(")
        if self.token.kind == "word" and self.token.text != "WARP_SZ":
            if kind not in _OF_MASKED:
                raise self.fail(f"{own} is .{kind}; a byte of an address is .u8, .u32 or .u64")
            self._pointer(value, kind.bytes, own, byte)
        else:
            number = integer(self.integer_constant()).bits(U64) >> 8 * byte & _BYTE
            self._put(value, integer(number), kind, own)
        self.expect(")")

    def _pointer(self, value: Initial, size: int, own: str, byte: int | None = None) -> None:
        """Read the name of a variable, or `generic(name)`, and what is added to it."""
        name = self.take("word").text
        if name == "generic" and self.accept("("):
            name = self.take("word").text
            self.expect(")")
        symbol = self.variable_named(name)
        variable = self.result.variables.get(symbol)
        if variable is None and symbol not in self.result.functions and name != own:
            raise self.fail(f"{own} is initialised with the address of {name}, which is not declared before it")
        if variable is not None and variable.space not in ("global", "const"):
            raise self.fail(f"{own} is initialised with the address of {name}, which is in {variable.space} memory")
        addend = self.integer_constant() if self.accept("+") else 0
        value.pointers.append(Pointer(len(value.data), symbol, addend, size, byte))
        value.data += bytes(size)
