"""F16: IEEE half precision, a block of one value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.formats.codes import load_words, split_scales
from ptxgen.formats.format import Decoder, Format, LaneAddress, Weight, register_format
from ptxgen.types import F16

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@register_format
class F16Format(Format):
    """A weight is the stored half, which f32 holds exactly."""

    name = "F16"
    id = "f16"
    ggml_type = 1
    block = 1
    block_bytes = 2
    columns = 1
    depth = 1
    widths = (1, 2, 4, 8)

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        def decode(group: Index) -> list[Weight]:
            if width == 1:
                return [Weight(0, k.f32(k.load(place.at(0, group, 2)[0], F16)))]
            halves = [half for word in load_words(k, place.at(0, group, 2), width // 2) for half in split_scales(k, word)]
            return [Weight(i, half) for i, half in enumerate(halves)]

        return decode

    def random_blocks(self, rng: np.random.Generator, rows: int, k: int) -> NDArray[np.uint8]:
        import numpy as np

        values: NDArray[np.float64] = rng.standard_normal((rows, k)) / k**0.5
        return values.astype("<f2").view(np.uint8)
