"""The steps that a prompt's tokens go in, many at a time: how many in each. What runs them is decoder.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from executor.base.row_tiles import TILE

LEAST_ROWS: Final = TILE
"""Rows of the smallest step: as many as read the weights together."""


def chunks(tokens: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """The tokens in as few steps of up to `most` as leave none of their rows idle but in the last, which has at most
    LEAST_ROWS: powers of two, the largest first."""
    whole_steps = 1 << (most.bit_length() - 1)
    at = 0
    while at < len(tokens):
        rest = len(tokens) - at
        size = min(rest, whole_steps) if rest <= LEAST_ROWS else min(whole_steps, 1 << (rest.bit_length() - 1))
        yield tokens[at : at + size]
        at += size


def prompt_steps(length: int, most: int) -> list[int]:
    """The sizes of the steps that prompts of up to `length` tokens make, in `chunks` of up to `most`."""
    largest = min(length, most)
    return [LEAST_ROWS << double for double in range(max(1, (largest // LEAST_ROWS).bit_length()))]
