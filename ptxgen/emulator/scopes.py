"""The names that a pair of braces of PTX declares, and what they are called in the function."""

from __future__ import annotations

from ptxgen.types import DType


class Scope:
    """What a pair of braces declares. `names`: the name that is unique in the function for each; `ranges`: how many registers
    `%r<100>` names, and of which type; each is declared when it is first used."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.ranges: dict[str, tuple[int, DType]] = {}

    def in_range(self, name: str) -> DType | None:
        """The type of a register that a range names: `%r12` may be number 12 of `%r<100>`, or 2 of `%r1<10>`."""
        for split in range(len(name) - 1, max(len(name.rstrip("0123456789")), len(name) - 7) - 1, -1):
            stem, index = name[:split], name[split:]
            if stem in self.ranges and str(int(index)) == index and int(index) < self.ranges[stem][0]:
                return self.ranges[stem][1]
        return None
