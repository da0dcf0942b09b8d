"""How many of the sequences that want their next token have rows in a step: as many as make most tokens a second, by what was
measured of the products of their model. So more sequences never make fewer tokens a second; others have the next turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

from executor.choice.choice import GpuProfile
from executor.choice.thresholds import BESIDE, RATE
from executor.layers.batched import launched
from executor.memory.weights import LoadedWeight
from executor.model.matrices import multiplied
from executor.model.spec import ModelSpec
from ptxgen.formats import Format


class MatrixProduct(NamedTuple):
    """A matrix by which rows are multiplied: n rows of k weights."""

    format: Format
    k: int
    n: int

    def seconds(self, profile: GpuProfile, rows: int) -> float:
        """How long that takes for so many rows, at most: by the cost model where that chose the kernel, by what was measured of
        it, else by how often its weights are read. Errors as GpuProfile.choose."""
        choice = profile.choose(*self, rows=rows)
        if choice.expected is not None:
            return choice.expected
        entry = choice.entry
        if entry is not None and entry.seconds is not None and (entry.rows > 1) == (rows > 1):
            return entry.most_seconds(rows)
        alone = profile.choose(*self).kernel
        launches = sum(count for _, count in launched(alone, rows))
        return launches * self.n * self.format.row_bytes(self.k) / RATE


class StepCost:
    """What a step takes, by its rows, as far as its products say; each number is found once."""

    def __init__(self, products: Mapping[MatrixProduct, int], profile: GpuProfile) -> None:
        """products: of a step, and how many there are of each."""
        self._products, self._profile = products, profile
        self._seconds: dict[int, float] = {}

    @classmethod
    def of(cls, spec: ModelSpec, weights: Mapping[str, LoadedWeight], profile: GpuProfile) -> Self:
        """Of a model with these weights; of one that ranks share, as if one device had it."""
        matrices = (weights[name] for _, name in multiplied(spec))
        return cls(Counter(MatrixProduct(one.format, one.k, one.rows) for one in matrices), profile)

    def seconds(self, rows: int) -> float:
        """Of a step of so many rows, idle ones counted. Errors as GpuProfile.choose."""
        if rows not in self._seconds:
            each = (count * (product.seconds(self._profile, rows) + BESIDE) for product, count in self._products.items())
            self._seconds[rows] = sum(each)
        return self._seconds[rows]


def paying(seconds: Callable[[int], float], waiting: int) -> int:
    """Of so many sequences that wait for a token, how many a step takes: the most of those numbers that make most tokens a
    second. seconds: of a step whose rows are a power of two, as all are that run."""
    powers = [1 << power for power in range((waiting - 1).bit_length())]
    sizes = {rows: rows for rows in powers} | {waiting: 1 << (waiting - 1).bit_length()}
    return max(sizes, key=lambda rows: (rows / seconds(sizes[rows]), rows))
