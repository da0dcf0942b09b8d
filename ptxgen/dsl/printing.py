"""`k.print`: text from a running kernel, for looking into it. A call of the driver's `vprintf`, which the emulator knows."""

from __future__ import annotations

from ptxgen.dsl.core import Core
from ptxgen.dsl.ir import PRINT_ARGUMENTS, PRINT_FORMAT, PRINT_STATUS, PRINT_VALUES
from ptxgen.dsl.value import Value
from ptxgen.errors import AuthorError, TypeMismatch
from ptxgen.isa.operands import Address, Callee, Immediate, Symbol
from ptxgen.isa.printf import MOST_VALUES, VPRINTF, Conversion, pieces, places
from ptxgen.types import B32, B64, F32, F64, PRED, S32, U32, U64, Kind


class Printing(Core):
    """The printing of KernelBuilder."""

    def print(self, format: str, *values: Value | float) -> None:
        """Print as C's printf does, from every thread that comes here: `k.print("%d: %f\\n", k.tid.x, total)`.

        %d %i %u %x %X %o take whole numbers of 32 bits or less (predicates as 0 and 1), %lld, %llu and the like of 64, %c a
        character, %p a u64, %f %e %g floats of any size; flags, width and precision are C's. Plain ASCII, at most 32 values. On
        a GPU the text comes to stdout when the host waits for the work, from a buffer of 1 MB that drops the oldest; on the
        emulator at once. For finding faults: a call takes registers and local memory. Raises AuthorError and TypeMismatch, at
        the author's line, for a format that does not fit the values."""
        conversions = [one for one in self._pieces(format) if isinstance(one, Conversion)]
        if len(conversions) != len(values):
            wanted = ", ".join(map(str, conversions)) or "none"
            raise AuthorError(f"the format takes {len(conversions)} values ({wanted}), got {len(values)}", self.where())
        if len(values) > MOST_VALUES:
            raise AuthorError(f"a call prints at most {MOST_VALUES} values, got {len(values)}", self.where(), "print twice")
        function = self._function
        size = 0
        for (conversion, offset), value in zip(places(iter(conversions)), values, strict=True):
            type = "f64" if conversion.is_float else f"b{8 * conversion.size}"
            place = Address(Symbol(PRINT_ARGUMENTS), offset)
            self.write("st", [place, self._promoted(conversion, value)], {"space": "local", "type": type})
            size = offset + conversion.size
        function.print_bytes = max(function.print_bytes, size)
        self._pass(PRINT_FORMAT, self._generic(function.add_format(format), "global"))
        self._pass(PRINT_VALUES, self._generic(PRINT_ARGUMENTS, "local") if size else Immediate(0, B64))
        self.write("call", [Callee(VPRINTF, results=(PRINT_STATUS,), arguments=(PRINT_FORMAT, PRINT_VALUES))])

    def _pieces(self, format: str) -> list[str | Conversion]:
        if not isinstance(format, str) or not format.isascii() or "\0" in format:
            raise AuthorError(f"a format is plain ASCII without a zero, got {format!r}", self.where())
        try:
            return list(pieces(format))
        except ValueError as error:
            raise AuthorError(f"k.print: {error}", self.where(), "a percent sign itself is %%") from None

    def _generic(self, name: str, space: str) -> Value:
        (address,) = self.write("mov", [Symbol(name)], {"type": "u64"}, result=U64)
        return self.write("cvta", [address], {"space": space}, result=U64)[0]

    def _pass(self, parameter: str, value: Value | Immediate) -> None:
        self.write("st", [Address(Symbol(parameter)), value], {"space": "param", "type": "b64"})

    def _promoted(self, conversion: Conversion, value: Value | float) -> Value | float:
        """The value as C passes it where this conversion takes it."""
        bits = 8 * conversion.size
        if conversion.letter == "s":
            raise AuthorError(
                f"{conversion} takes a string, and kernels have none",
                self.where(),
                'what is known while the kernel is being written goes into the format: f"{name}: %f"',
            )
        if not isinstance(value, Value):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeMismatch(f"k.print takes registers and numbers, got {value!r}", self.where())
            if conversion.is_float:
                return float(value)
            if not isinstance(value, int) or not -(1 << (bits - 1)) <= value < 1 << bits:
                raise self._misfit(conversion, f"the constant {value}", f"give a whole number of {bits} bits")
            return value
        described = f"{value.register} ({value.type})"
        if conversion.is_float:
            if value.type not in (F64, F32) and (not value.type.is_float or value.type.lanes > 1):
                raise self._misfit(conversion, described, "write %d or %u for whole numbers, or convert with k.f32(...)")
            return value if value.type == F64 else self.f64(value if value.type == F32 else self.f32(value))
        if value.type == PRED and bits == 32:
            return self.write("selp", [1, 0, value], {"type": "u32"}, result=U32)[0]
        if value.type.is_float or value.type.kind is Kind.PREDICATE:
            raise self._misfit(conversion, described, "write %f for floats, or convert with k.s32(...)")
        if value.type.bits == 16 and value.type.is_integer and bits == 32:
            return self.convert(value, S32 if value.type.is_signed else U32)
        if value.type.bits != bits:
            hint = "write %lld or %llu" if value.type.bits == 64 else "write it without ll, or convert with k.s64(...)"
            raise self._misfit(conversion, described, hint)
        return self.bits(value, B32 if bits == 32 else B64)

    def _misfit(self, conversion: Conversion, given: str, hint: str) -> TypeMismatch:
        what = "a float" if conversion.is_float else f"a whole number of {8 * conversion.size} bits"
        return TypeMismatch(f"{conversion} in the format takes {what}, got {given}", self.where(), hint)
