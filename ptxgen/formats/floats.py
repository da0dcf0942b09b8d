"""F32, F16 and BF16: plain floats, blocks of one value."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import Index
from ptxgen.dsl.value import Value
from ptxgen.formats.codes import load_words, split_scales
from ptxgen.formats.format import Decoder, Format, LaneAddress, Weight, register_format
from ptxgen.types import F16, F32, U16

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class _Float(Format):
    """A weight is what is stored. Subclasses say how one is loaded, or several side by side."""

    block = 1
    columns = 1
    depth = 1
    stored: ClassVar[str] = "<f4"
    """The NumPy type of weights in a file."""

    @abstractmethod
    def load(self, k: KernelBuilder, place: LaneAddress, group: Index, width: int) -> list[Value]:
        """Write the loads of `width` weights, and what makes f32 of them."""

    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        return lambda group: [Weight(i, value) for i, value in enumerate(self.load(k, place, group, width))]

    def random_blocks(self, rng: np.random.Generator, rows: int, k: int) -> NDArray[np.uint8]:
        """Normal weights, rounded to the format."""
        import numpy as np

        values: NDArray[np.float64] = rng.standard_normal((rows, k)) / k**0.5
        return values.astype(self.stored).view(np.uint8)


@register_format
class F32Format(_Float):
    """A weight is what is stored."""

    name = "F32"
    id = "f32"
    ggml_type = 0
    block_bytes = 4
    widths = (1, 2, 4)

    def load(self, k: KernelBuilder, place: LaneAddress, group: Index, width: int) -> list[Value]:
        first = place.at(0, group, 4)[0]
        return list(k.load_vector(first, width, F32)) if width > 1 else [k.load(first, F32)]


@register_format
class F16Format(_Float):
    """A weight is the stored half, which f32 holds exactly."""

    name = "F16"
    id = "f16"
    ggml_type = 1
    block_bytes = 2
    widths = (1, 2, 4, 8)
    stored = "<f2"

    def load(self, k: KernelBuilder, place: LaneAddress, group: Index, width: int) -> list[Value]:
        if width == 1:
            return [k.f32(k.load(place.at(0, group, 2)[0], F16))]
        return [half for word in load_words(k, place.at(0, group, 2), width // 2) for half in split_scales(k, word)]


@register_format
class BF16Format(_Float):
    """A weight is the stored 16 bits, the upper half of a float, with 16 zero bits below: a shift, because sm_75 has no bf16
    conversion."""

    name = "BF16"
    id = "bf16"
    ggml_type = 30
    block_bytes = 2
    widths = (1, 2, 4, 8)

    def load(self, k: KernelBuilder, place: LaneAddress, group: Index, width: int) -> list[Value]:
        if width == 1:
            return [k.bits(k.load(place.at(0, group, 2)[0], U16) << 16, F32)]
        words = load_words(k, place.at(0, group, 2), width // 2)
        return [k.bits(half, F32) for half in [half for word in words for half in (word << 16, word & 0xFFFF0000)]]

    def random_blocks(self, rng: np.random.Generator, rows: int, k: int) -> NDArray[np.uint8]:
        """The upper halves of F32's."""
        import numpy as np

        return (super().random_blocks(rng, rows, k).view("<u4") >> 16).astype("<u2").view(np.uint8)
