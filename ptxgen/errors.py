"""Every exception this package raises on purpose. Catch `PtxGenError` to catch them all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


def spelt(value: object) -> str:
    """A value as Python writes it, for a message; a NumPy scalar as the number that it holds, not as `np.float64(1.0)`."""
    return repr(value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The hint for a name that nothing has: names that are spelt much like it, or else `otherwise`."""
    import difflib  # late: most runs have no such error

    near = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {', '.join(near)}?" if near else otherwise


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
        super().__init__(f"ptx line {line}: {printable(message, 1000)}" + (f"\n  {printable(text.strip())}" if text else ""))


def printable(text: str, most: int = 160) -> str:
    """A stranger's text for a message: at most so many characters, and those that a terminal obeys as Python spells them."""
    kept = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:most])
    return kept + "..." if len(text) > most else kept


class ArgumentError(PtxGenError, ValueError):
    """A value from outside (a shape, an option, a launch argument) that is not allowed; names the allowed ones."""


class Nonconformity(PtxGenError):
    """A kernel type that breaks its contract (see ptxgen.conformance). Says what it does and what it should."""
