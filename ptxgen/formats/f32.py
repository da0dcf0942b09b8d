"""F32: plain floats, a block of one value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.formats.format import Decoder, Format, LaneAddress, Weight, register_format
from ptxgen.types import F32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@register_format
class F32Format(Format):
    """A weight is what is stored."""

    name = "F32"
    id = "f32"
    ggml_type = 0
    block = 1
    block_bytes = 4
    columns = 1
    depth = 1
    widths = (1, 2, 4)

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        def decode(group: Index) -> list[Weight]:
            first = place.at(0, group, 4)[0]
            values = k.load_vector(first, width, F32) if width > 1 else [k.load(first, F32)]
            return [Weight(i, value) for i, value in enumerate(values)]

        return decode

    def random_blocks(self, rng: np.random.Generator, rows: int, k: int) -> NDArray[np.uint8]:
        import numpy as np

        values: NDArray[np.float64] = rng.standard_normal((rows, k)) / k**0.5
        return values.astype("<f4").view(np.uint8)
