"""BF16: the upper half of a float, a block of one value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.formats.codes import load_words
from ptxgen.formats.format import Decoder, Format, LaneAddress, Weight, register_format
from ptxgen.types import F32, U16

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@register_format
class BF16Format(Format):
    """A weight is the stored 16 bits with 16 zero bits below: a shift, because sm_75 has no bf16 conversion."""

    name = "BF16"
    id = "bf16"
    ggml_type = 30
    block = 1
    block_bytes = 2
    columns = 1
    depth = 1
    widths = (1, 2, 4, 8)

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        def decode(group: Index) -> list[Weight]:
            if width == 1:
                return [Weight(0, k.bits(k.load(place.at(0, group, 2)[0], U16) << 16, F32))]
            words = load_words(k, place.at(0, group, 2), width // 2)
            upper = [half for word in words for half in (word << 16, word & 0xFFFF0000)]
            return [Weight(i, k.bits(half, F32)) for i, half in enumerate(upper)]

        return decode

    def random_blocks(self, rng: np.random.Generator, rows: int, k: int) -> NDArray[np.uint8]:
        import numpy as np

        values: NDArray[np.float64] = rng.standard_normal((rows, k)) / k**0.5
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").view(np.uint8)
