"""Every exception this package raises on purpose. Catch `PtxGenError` to catch them all."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.printable import excerpt, literal


@dataclass(frozen=True)
class Location:
    """A line of Python that a kernel author wrote."""

    file: str
    line: int
    source: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f"  {self.source}" if self.source else "")


class PtxGenError(Exception):
    """Base of every error of ptxgen and of executor."""


class AuthorError(PtxGenError):
    """A kernel was written wrongly. Says what is wrong, where, and what to write instead."""

    def __init__(self, message: str, where: Location | None = None, hint: str = "") -> None:
        self.message = message
        self.where = where
        self.hint = hint
        lines = [message]
        if where is not None:
            lines.append(f"  {where}")
        if hint:
            lines.append(f"  {hint}")
        super().__init__("\n".join(lines))


class TypeMismatch(AuthorError):
    """Operands whose PTX types do not go together."""


class UnknownInstruction(AuthorError):
    """A builder method or modifier that no row of the instruction table has."""


class UnavailableInstruction(AuthorError):
    """An instruction that the chosen target does not have."""


class VerifyError(AuthorError):
    """A finished function that breaks a static rule (see ptxgen.verify)."""


class ParseError(PtxGenError):
    """PTX text that is not PTX. Says the line."""

    def __init__(self, message: str, line: int, text: str = "") -> None:
        self.line = line
        super().__init__(f"ptx line {line}: {excerpt(message, 1000)}" + (f"\n  {excerpt(text.strip())}" if text else ""))


class ArgumentError(PtxGenError, ValueError):
    """A value from outside (a shape, an option, a launch argument) that is not allowed; names the allowed ones."""


class ShapeError(ArgumentError):
    """A field of a kernel's shape that is beyond the kernel's limits. kernel: its name; allowed: the values of the field."""

    def __init__(self, kernel: str, field: str, value: object, allowed: str) -> None:
        self.kernel = kernel
        self.field = field
        self.value = value
        self.allowed = allowed
        super().__init__(f"{kernel}: {field} must be {allowed}, got {literal(value)}")


class NoRoom(ArgumentError):
    """A kernel of this shape needs more shared memory than a block has on any GPU."""


class Nonconformity(PtxGenError):
    """A kernel type that breaks its contract (see ptxgen.conformance). Says what it does and what it should."""
