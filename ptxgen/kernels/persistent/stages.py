"""What the blocks of a persistent kernel do between two of their barriers, in plain words: products of the same activations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ptxgen.formats import Format


class Source(StrEnum):
    """Where the activations of a stage come from: planes that a kernel before left, the norm of the stream, gated values."""

    DIGITS = "digits"
    NORM = "norm"
    GATED = "gated"


class Goal(StrEnum):
    """Where its products go: onto the stream; gate and up together to the gated values; to an array of each matrix."""

    STREAM = "stream"
    GATED = "gated"
    OWN = "own"


@dataclass(frozen=True)
class StageMatrix:
    """A matrix of a stage, n rows: of gate and up, two matrices in one, whose rows belong together. `weights` and `result` are
    arguments."""

    format: Format
    n: int
    weights: tuple[str, ...]
    result: str


@dataclass(frozen=True)
class Stage:
    """Products of the same k activations. gamma: of its norm, an argument."""

    source: Source
    goal: Goal
    k: int
    digits: int
    matrices: tuple[StageMatrix, ...]
    gamma: str = ""
