"""How the int8 planes of activations of a rank's part of a row stand as words, of four bytes each, in a message to other
ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.kernels.quantize.quantize import LANE_VALUES

BLOCK_LANES: Final = BLOCK // LANE_VALUES


@dataclass(frozen=True)
class PlaneWords:
    """`values` values, whole blocks of 32: first each of their planes, the highest first, four values in a word; then the
    scales of the blocks, their sums and, `normed`, their squares."""

    values: int
    digits: int
    normed: bool

    @property
    def lanes(self) -> int:
        """Words of a plane."""
        return self.values // LANE_VALUES

    @property
    def blocks(self) -> int:
        """Scales, and sums, and squares."""
        return self.values // BLOCK

    @property
    def of_blocks(self) -> tuple[str, ...]:
        """What there is of each block, by the names of the arrays."""
        return ("scales", "sums", "squares") if self.normed else ("scales", "sums")

    @property
    def count(self) -> int:
        """All words."""
        return self.start(self.of_blocks[-1]) + self.blocks

    def start(self, name: str, plane: int = 0) -> int:
        """The first word of this array, or of this plane."""
        if name == "digits":
            return plane * self.lanes
        return self.digits * self.lanes + self.of_blocks.index(name) * self.blocks
