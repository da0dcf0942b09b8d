"""The heart of the builder: turns a call into a typed instruction of the table, with the author's line on it. Memory,
control flow and cooperation are layers on top (memory.py, flow.py, cooperation.py); builder.py is what authors see."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast, get_args

from ptxgen.dsl.author import author_line
from ptxgen.dsl.ir import Function, Label, Line, Op, Remark
from ptxgen.dsl.mistakes import no_operand, no_register
from ptxgen.dsl.refusals import cure
from ptxgen.dsl.resolve import Fit, Source, resolve
from ptxgen.dsl.value import Value
from ptxgen.errors import AuthorError, TypeMismatch, UnavailableInstruction, UnknownInstruction
from ptxgen.isa import special
from ptxgen.isa.operands import AnyOperand, Register, Symbol, Vector
from ptxgen.printable import did_you_mean
from ptxgen.target import DEFAULT, Target
from ptxgen.types import BF16, F16, F32, F64, PRED, S32, S64, U32, U64, DType

OperandLike = Value | float | AnyOperand | Sequence[Value]
"""What an author may give as an operand: a register, a number, an address, several registers for a vector."""

_PLAIN_OPERANDS = (int, float, *get_args(AnyOperand))

# How registers are named in the text, by the type they are declared with.
_PREFIX = {
    "pred": "%p", "u16": "%us", "s16": "%ss", "b16": "%hb", "f16": "%h", "u32": "%r", "s32": "%s", "b32": "%b",
    "u64": "%rd", "s64": "%sd", "b64": "%bd", "f32": "%f", "f64": "%fd", "b128": "%q",
}  # fmt: skip


def _converts(type: DType) -> Callable[[Core, Value | float], Value]:
    def convert(self: Core, value: Value | float) -> Value:
        return self.convert(value, type)

    convert.__doc__ = f"The number as {type}; see `convert`."
    return convert


class Core:
    """Instructions, registers and conversions of KernelBuilder."""

    def __init__(self, function: Function, target: Target = DEFAULT) -> None:
        self._target = target
        self.body: list[Line] = []
        self.loop_depth = 0
        self.broken: AuthorError | None = None
        self._in_order = False  # see loads_in_order of memory.py
        self._function = function
        self._prologue: list[Line] = []
        self._at_entry: dict[str, Value] = {}
        self._registers: dict[str, int] = {}
        self._labels = 0
        from ptxgen.isa.instructions import named  # late: kernels are listed without the table

        self._named = named

    @property
    def target(self) -> Target:
        """What the kernel is written for. Whoever asks may write another text for each target."""
        self._function.target_matters = True
        return self._target

    # Instructions

    if not TYPE_CHECKING:  # checkers know each instruction by builder.pyi

        def __getattr__(self, name: str) -> Callable[..., Any]:
            """The instruction called `name` as a method (`and_`, `or_`, `not_` for those that are Python keywords). It returns
            the destination, a tuple of Values where the instruction has several, None where it has none."""
            if name.startswith("_"):
                raise AttributeError(name)
            row_name = name.rstrip("_")
            try:
                self._named(row_name)
            except UnknownInstruction as error:
                raise UnknownInstruction(error.message, self.where(), cure(row_name) or error.hint) from None

            def instruction(*operands: OperandLike, result: DType | None = None, **modifiers: str) -> Any:
                values = self.write(row_name, operands, modifiers, result=result)
                return values if len(values) > 1 else values[0] if values else None

            return instruction

    def op(self, name: str, *operands: OperandLike, result: DType | None = None, **modifiers: str) -> Value:
        """Write an instruction and return its destination (the first, if it has several). `result` is the destination's type
        where the operands do not settle it. Raises TypeMismatch, UnknownInstruction, UnavailableInstruction with the author's
        line."""
        values = self.write(name, operands, modifiers, result=result)
        if not values:
            raise AuthorError(f"{name} has no result", self.where(), f"call k.{name}(...) as a statement")
        return values[0]

    def write(
        self,
        name: str,
        operands: Sequence[OperandLike],
        modifiers: Mapping[str, str] | None = None,
        *,
        result: DType | None = None,
        into: Value | Sequence[Value] = (),
        guard: Value | None = None,
        guard_negated: bool = False,
        prologue: bool = False,
    ) -> tuple[Value, ...]:
        """Write an instruction; returns its destinations, the registers of a vector one by one. A tuple of Values among the
        operands is a vector. `into` are existing registers to write, `guard` a predicate under which the instruction runs;
        `prologue` puts it at the entry."""
        existing = [into] if isinstance(into, Value) else list(into)
        fit = self._resolve(name, operands, modifiers or {}, existing[0].type if existing else result)
        self._check_available(fit)
        values: list[Value] = []
        destinations: dict[str, AnyOperand] = {}
        for place, (type, count) in fit.destinations.items():
            written = existing or [self._new(type) for _ in range(count)]
            values += written
            registers = tuple(value.register for value in written)
            destinations[place] = registers[0] if count == 1 else Vector(registers)
        line = Op(
            fit.row,
            fit.modifiers,
            {**destinations, **fit.sources},
            self.where(),
            guard.register if guard is not None else None,
            guard_negated,
        )
        (self._prologue if prologue else self.body).append(line)
        return tuple(values)

    def _resolve(self, name: str, operands: Sequence[OperandLike], modifiers: Mapping[str, str], result: DType | None) -> Fit:
        sources = [self._source(name, operand) for operand in operands]
        return resolve(name, self._named(name), sources, modifiers, result, self.where)

    def _source(self, name: str, operand: OperandLike) -> Source:
        if isinstance(operand, Value):
            if operand.k is not self:
                raise AuthorError(f"{operand} belongs to another kernel", self.where())
            return operand.register
        if isinstance(operand, tuple | list) and operand and all(isinstance(one, Value) for one in operand):
            return Vector(tuple(one.register for one in operand))
        if isinstance(operand, _PLAIN_OPERANDS) and not isinstance(operand, bool):
            return cast("Source", operand)
        raise no_operand(name, operand, self.where)

    def _check_available(self, fit: Fit) -> None:
        sm, ptx = fit.row.need(fit.modifiers)
        if not self._target.has(sm, fit.row.feature):
            raise UnavailableInstruction(
                f"{fit.row.opcode(fit.modifiers)} needs sm_{sm}{fit.row.feature} and PTX {ptx[0]}.{ptx[1]}, the target is "
                f"{self._target}",
                self.where(),
                f"say in the kernel type that it is for sm_{sm}{fit.row.feature} alone (only_on)"
                if fit.row.feature
                else "choose by k.target.sm in the kernel, or emit for a newer target",
            )

    # Registers

    def _new(self, type: DType) -> Value:
        prefix = _PREFIX[type.register]
        number = self._registers.get(prefix, 0)
        self._registers[prefix] = number + 1
        return Value(self, Register(f"{prefix}{number}", type))

    def variable(self, start: Value | float, type: DType) -> Value:
        """A new register that holds `start` and is meant to be changed with `@=`."""
        return self.assign(self._new(type), start)

    def assign(self, variable: Value, value: Value | float) -> Value:
        """Write `variable` again; the types must be the same. `variable @= value` does the same."""
        if isinstance(value, Value) and value.type != variable.type:
            raise TypeMismatch(
                f"cannot assign {value.type} to {variable.type}", self.where(), f"convert with k.{variable.type}(...)"
            )
        return self.write("mov", [value], _moved_as(variable.type), into=variable)[0]

    def special(self, name: str) -> Value:
        """A special register (PTX ISA 10), e.g. %smid, read once at the entry; a clock is read here and now."""
        register = special.BY_NAME.get(name)
        if register is None:
            hint = did_you_mean(name, special.BY_NAME, f"known: {', '.join(special.BY_NAME)}")
            raise AuthorError(f"no special register is called {name!r}", self.where(), hint)
        if "clock" in name or "timer" in name:
            return self.op("mov", register.operand)
        return self._once(name, "mov", [register.operand], {}, register.type)

    def symbol_address(self, name: str) -> Value:
        """The 32-bit shared-window address of a shared array."""
        return self._once(name, "mov", [Symbol(name)], {"type": "u32"}, U32)

    def _once(self, key: str, name: str, operands: Sequence[OperandLike], modifiers: Mapping[str, str], type: DType) -> Value:
        """A value computed at the entry, from where it reaches every use."""
        if key not in self._at_entry:
            self._at_entry[key] = self.write(name, operands, modifiers, result=type, prologue=True)[0]
        return self._at_entry[key]

    # Conversions and choices

    def convert(self, value: Value | float, type: DType) -> Value:
        """The number as another type: a constant goes into a register, a register is converted (to integers toward zero)."""
        if not isinstance(value, Value):
            if type in (F16, BF16):  # no constants of these types in PTX
                try:
                    bits = _half_bits(value, type)
                except OverflowError:
                    raise TypeMismatch(f"the constant {value} does not fit {type}", self.where()) from None
                return self.write("mov", [bits], {"type": "b16"}, result=type)[0]
            return self.variable(value, type)
        return value if value.type == type else self.op("cvt", value, result=type)

    f32, f64, f16, bf16 = map(_converts, (F32, F64, F16, BF16))
    u32, s32, u64, s64 = map(_converts, (U32, S32, U64, S64))

    def bits(self, value: Value, type: DType) -> Value:
        """The same bits as another type of the same size."""
        if not isinstance(value, Value):
            raise no_register("k.bits", value, self.where)
        if value.type.bits != type.bits:
            raise TypeMismatch(f"{value.type} and {type} differ in size", self.where(), "convert the number with k.convert")
        return value if value.type == type else self.op("mov", value, result=type, type=f"b{type.bits}")

    def select(self, condition: Value, a: Value | float, b: Value | float) -> Value:
        """a where the predicate holds, else b."""
        type = next((one.type for one in (a, b) if isinstance(one, Value)), None)
        return self.write("selp", [a, b, condition], _moved_as(type) if type is not None else {})[0]

    def compare(self, relation: str, a: Value | float, b: Value | float) -> Value:
        """A predicate: lt, le, gt, ge, eq, ne. On floats false if either is NaN, save that `ne` is then true, as in Python."""
        if isinstance(a, Value) and a.type == PRED:
            raise TypeMismatch(f"predicates are combined with & | ^ ~, not compared ({relation})", self.where())
        floats = isinstance(a, Value) and a.type.is_float
        return self.op("setp", a, b, cmp="neu" if relation == "ne" and floats else relation)

    # The text around

    def remark(self, text: str) -> None:
        """A comment in the PTX."""
        self.body.append(Remark(text, self.where()))

    def new_label(self, purpose: str) -> str:
        """A label that nothing else has, named after its purpose."""
        self._labels += 1
        return f"${purpose}_{self._labels}"  # the $ keeps it apart from every other name

    def place(self, label: str) -> None:
        """Put a label here."""
        self.body.append(Label(label))

    where = staticmethod(author_line)
    """The author's line that is running now."""

    def finish(self) -> Function:
        """The finished function. Raises what could not be raised where it happened."""
        if self.broken is not None:
            raise self.broken
        last = next((line.where for line in reversed(self.body) if isinstance(line, Op)), None)
        self.write("ret", [])
        end = self.body[-1]
        if last is not None and isinstance(end, Op):
            self.body[-1] = replace(end, where=last)  # no author wrote it: it belongs to the line that the kernel ends with
        self._function.body = [*self._prologue, *self.body]
        return self._function


def _moved_as(type: DType) -> dict[str, str]:
    """The form of mov and selp for a type: they have none for the short and packed floats, whose bits are moved (PTX ISA
    9.7.9.3)."""
    plain = type in (F32, F64) or not type.is_float
    return {"type": type.name if plain else f"b{type.bits}"}


def _half_bits(value: float, type: DType) -> int:
    """The bits of a Python number rounded to nearest even as f16 or bf16. Raises OverflowError."""
    if type == F16:
        return int.from_bytes(struct.pack("<e", value), "little")
    bits = int.from_bytes(struct.pack("<f", value), "little")
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
