"""What an environment variable is: its name, its help, and how its text is read. The table of them is environment.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from executor.base.environment_values import is_off, on
from ptxgen.errors import ArgumentError

FORMAT: Final = "<FORMAT>"

T = TypeVar("T")


@dataclass(frozen=True)
class EnvironmentVariable(Generic[T]):
    """One variable, or one for each weight format where the name holds <FORMAT>.

    Not set or empty means `unset()`; 0 and false, in any case, mean `off`; `parse` turns any other text into a value and raises
    ValueError for one that is not allowed. `allowed` and `default` are texts for people. secret: no error shows its value."""

    name: str
    does: str
    allowed: str
    default: str
    unset: Callable[[], T]
    off: T
    parse: Callable[[str], T]
    secret: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names that it stands for."""
        return tuple(map(self._of, format_ids())) if FORMAT in self.name else (self.name,)

    def read(self, id: str = "") -> T:
        """Its value now. ArgumentError, with variable, value and what is allowed, for a value that is not. id: as of
        `refused`."""
        text = os.environ.get(self._of(id), "").strip()
        if not text:
            return self.unset()
        if is_off(text):
            return self.off
        try:
            return self.parse(text)
        except ValueError as error:
            raise self.refused(str(error) if isinstance(error, ArgumentError) else "", id) from None

    def refused(self, why: str, id: str = "") -> ArgumentError:
        """The error for the value that it has now, which is not allowed; why: what is wrong with it, where that is known; id:
        of the format, where there is a variable for each."""
        name = self._of(id)
        value = "set to what is not shown" if self.secret else repr(os.environ.get(name, "").strip())
        return ArgumentError(f"environment variable {name} is {value}; allowed: {self.allowed}{f' ({why})' if why else ''}")

    def note(self, id: str = "", value: str = "") -> str:
        """For an error about what it asks for: that it does, in brackets; nothing where it is not set, or to another value. id:
        as of `refused`."""
        text = os.environ.get(self._of(id), "").strip()
        return f" (environment variable {self._of(id)} is {text!r})" if text and value in ("", text) else ""

    def _of(self, id: str) -> str:
        return self.name.replace(FORMAT, id.upper())


def switch(name: str, does: str) -> EnvironmentVariable[bool]:
    """A variable that is on or off, and off unless it is set."""
    return EnvironmentVariable(name, does, "1 or 0", "0", lambda: False, False, on)


def format_ids() -> list[str]:
    """The ids of the weight formats."""
    from ptxgen.formats import ALL  # late, so that the commands start quickly

    return [format.id for format in ALL.values()]
