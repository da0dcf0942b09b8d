"""Which tokens the keys and values of a sequence were computed from, as far as the host knows: what a next sequence that begins
alike need not compute again. The keys and values themselves, and how many there are, are the cache's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class _Place(NamedTuple):
    token: int | None
    by_rows: bool


class ComputedTokens:
    """By position, the token that ran there, None where the host never saw it, and whether it ran in a step of many rows, whose
    last bits are not those of a token by itself. All ran in one model: those of another one are forgotten."""

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._model: object = None

    def cut(self, position: int) -> None:
        """Nothing is known any more from `position` on: that is about to be written."""
        del self._places[position:]

    def put(self, position: int, tokens: Sequence[int | None], *, by_rows: bool, model: object) -> None:
        """These tokens have run from `position` on, in this model."""
        if self._model != model:
            self._places, self._model = [], model
        self.cut(position)
        self._places += [_Place(None, by_rows)] * (position - len(self._places))
        self._places += [_Place(token, by_rows) for token in tokens]

    def alone(self, position: int) -> int | None:
        """The token that ran there by itself; None where none did, or the host never saw it."""
        place = self._places[position] if 0 <= position < len(self._places) else None
        return None if place is None or place.by_rows else place.token

    def common(self, tokens: Sequence[int], model: object, *, by_rows: bool | None = None) -> int:
        """How many leading tokens ran in this model. by_rows: only those that ran so; None: however they ran."""
        if self._model != model:
            return 0
        for length, (token, place) in enumerate(zip(tokens, self._places, strict=False)):
            if token != place.token or by_rows not in (None, place.by_rows):
                return length
        return min(len(tokens), len(self._places))
