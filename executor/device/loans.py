"""Memory that belongs to somebody else and that a device may use for a while. What is done with it is the device's business."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Loan:
    """`nbytes` at `pointer`, for as long as the device has it; `owner` is what keeps the memory alive. With `read_only` no
    kernel may write it."""

    pointer: int
    nbytes: int
    owner: Any
    name: str = ""
    read_only: bool = False

    def holds(self, pointer: int, nbytes: int) -> bool:
        return self.pointer <= pointer and pointer + nbytes <= self.pointer + self.nbytes

    def meets(self, other: Loan) -> bool:
        return self.pointer < other.pointer + other.nbytes and other.pointer < self.pointer + self.nbytes


class Loans:
    """The loans of one device; several may cover the same memory. Loans may end on any thread, at any time: the garbage
    collector ends those whose buffer nobody has any more."""

    def __init__(self) -> None:
        self._loans: dict[int, Loan] = {}  # by identity

    def add(self, loan: Loan) -> None:
        self._loans[id(loan)] = loan

    def remove(self, loan: Loan) -> bool:
        """Whether it was there."""
        return self._loans.pop(id(loan), None) is not None

    def find(self, pointer: int, nbytes: int) -> Loan | None:
        """A loan that holds the whole range."""
        return next((loan for loan in self if loan.holds(pointer, nbytes)), None)

    def __iter__(self) -> Iterator[Loan]:
        return iter(list(self._loans.values()))

    def clear(self) -> None:
        self._loans.clear()
