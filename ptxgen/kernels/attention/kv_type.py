"""How a KV cache holds the values of a row: as f32, as f16, or as q8_0: an int8 code for each value and an f16 scale for every
32. Here are the arrays, what a lane does to load values of a row, and both ways in NumPy. Where a row stands is said in
paged_cache.py; what makes codes on the device stands with the kernel that does it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.formats.codes import centred, load_words, split_scales
from ptxgen.kernels.accuracy import UNIT
from ptxgen.printable import literal
from ptxgen.types import F16, F32, S8, U16, DType

SCALED: Final = 32
"""Values of a row that share a scale in q8_0."""

LARGEST_CODE: Final = 127

_SIGNS = 0x80808080


@dataclass(frozen=True)
class Part:
    """An array that a cache is made of: its name is that of the tensor (`k`, `v`), `_` and `suffix`; an element stands for
    `values` values of a row."""

    suffix: str
    dtype: DType
    values: int = 1


class KvType(ABC):
    """A way to hold values. The instances are in KV_TYPES, by id."""

    id: ClassVar[str]
    parts: ClassVar[tuple[Part, ...]]

    @property
    def together(self) -> int:
        """Values that must be known to write one of them."""
        return self.parts[-1].values

    def row_bytes(self, head_dim: int) -> int:
        """Bytes of a row."""
        return sum(head_dim // part.values * part.dtype.bytes for part in self.parts)

    @abstractmethod
    def load(self, k: KernelBuilder, row: Sequence[GlobalArray], place: int, width: int) -> list[Value]:
        """`width` values of a row as f32, exactly, from `place` values on after the lane's first. `row` holds for each part an
        array that starts at the lane's first value, which is a multiple of `width`; `width` is 1, 2, 4 or 8, `place` a multiple
        of 32."""

    @abstractmethod
    def encode(self, x: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """What stands in the parts for x: f32[..., head_dim]; the very bits that the kernels write."""

    @abstractmethod
    def stored(self, x: NDArray[Any], bound: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """What stands in each part, in float64, for f32 values within `bound` of x, and how far off that may be: for references
        and tolerances of what writes the cache. x, bound: f64[rows, head_dim]."""

    @abstractmethod
    def decode(self, parts: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        """The values that the parts stand for: f64[..., head_dim]."""


class _F32(KvType):
    id = "f32"
    parts = (Part("cache", F32),)

    def load(self, k: KernelBuilder, row: Sequence[GlobalArray], place: int, width: int) -> list[Value]:
        if width == 1:
            return [k.load(row[0][place])]
        step = min(width, 4)
        return [value for at in range(place, place + width, step) for value in k.load_vector(row[0][at], step)]

    def encode(self, x: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        return (x.astype(np.float32),)

    def stored(self, x: NDArray[Any], bound: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        return [(x, bound)]

    def decode(self, parts: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        return parts[0].astype(np.float64)


class _F16(KvType):
    """Rounded to nearest even; what is too large is infinite."""

    id = "f16"
    parts = (Part("cache", F16),)

    def load(self, k: KernelBuilder, row: Sequence[GlobalArray], place: int, width: int) -> list[Value]:
        if width == 1:
            return [k.f32(k.load(row[0][place]))]
        return [half for word in load_words(k, row[0].at(place), width // 2) for half in split_scales(k, word)]

    def encode(self, x: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        with np.errstate(over="ignore"):
            return (x.astype(np.float32).astype(np.float16),)

    def stored(self, x: NDArray[Any], bound: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Off by the rounding of f16, too."""
        return [(x, bound + _half(np.abs(x) + bound))]

    def decode(self, parts: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        return parts[0].astype(np.float64)


class _Q80(KvType):
    """GGML's Q8_0 (quantize_row_q8_0_ref) in two arrays, so that every load is aligned. d = max |x| / 127 and 1 / d are rounded
    as f32, a code is x times that, rounded as f32 and then to the nearest integer, halves away from zero; the scale is d as
    f16. Where GGML's code would have no defined value it is 0: where d is so small that 1 / d is infinite, and the scale is 0,
    and where d is infinite or NaN, so that every value of the block is NaN."""

    id = "q8_0"
    parts = (Part("cache", S8), Part("scales", F16, SCALED))

    def load(self, k: KernelBuilder, row: Sequence[GlobalArray], place: int, width: int) -> list[Value]:
        codes, scales = row
        scale = k.f32(k.load(scales[place // SCALED]))
        if width == 1:
            return [k.f32(k.load(codes[place])) * scale]
        if width == 2:
            words: Sequence[Value] = [k.load(codes[place], U16)]
        else:
            words = load_words(k, codes.at(place), width // 4)
        numbers = [number for word in words for number in centred(k, word ^ _SIGNS, min(width, 4), LARGEST_CODE + 1)]
        return [number * scale for number in numbers]

    def encode(self, x: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, SCALED)
        with np.errstate(all="ignore"):
            scales = np.abs(blocks).max(axis=-1) / np.float32(LARGEST_CODE)  # NaN if one is
            inverse = np.float32(1.0) / scales
            numbers = np.nan_to_num(blocks * np.where(np.isinf(inverse), np.float32(0.0), inverse)[..., None], nan=0.0)
            whole = np.trunc(numbers)
            codes = whole + np.trunc(2 * (numbers - whole))
            return codes.astype(np.int8).reshape(x.shape), scales.astype(np.float16)

    def stored(self, x: NDArray[Any], bound: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """By intervals, as in plane_bounds.py: the peak is between the largest |x| - bound and the largest |x| + bound, the
        scale between these over 127, rounded to f32 and then to f16. A code rises with its value, so it is between those of the
        ends of the value, each times the end of 1 / scale that brings it farther out, rounded three times; where the scale may
        be zero it may be any."""
        low, high, near, far = (
            side.reshape(len(x), -1, SCALED)
            for side in (x - bound, x + bound, np.maximum(np.abs(x) - bound, 0), np.abs(x) + bound)
        )
        least, most = (side.max(axis=-1, keepdims=True) / LARGEST_CODE for side in (near, far))
        exact = np.abs(x).reshape(low.shape).max(axis=-1, keepdims=True) / LARGEST_CODE
        scale_bound = np.maximum(most - exact, exact - least) + most * UNIT + _half(most)
        first = _codes(low, np.where(low < 0, least, most), -LARGEST_CODE, -1).reshape(x.shape)
        last = _codes(high, np.where(high > 0, least, most), LARGEST_CODE, 1).reshape(x.shape)
        middle = np.clip(_codes(x.reshape(low.shape), exact, 0, 0).reshape(x.shape), first, last)
        return [(middle, np.maximum(last - middle, middle - first)), (exact[..., 0], scale_bound[..., 0])]

    def decode(self, parts: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
        codes, scales = (part.astype(np.float64) for part in parts)
        with np.errstate(invalid="ignore"):
            return codes * np.repeat(scales, SCALED, axis=-1)


KV_TYPES: Final[dict[str, KvType]] = {kind.id: kind for kind in (_F32(), _F16(), _Q80())}
"""Every way to hold a cache, by the id that users and kernels name it by."""


def kv_type(kernel: str, name: object) -> KvType:
    """The way called `name`. ArgumentError with the kernel and the known ones if there is none."""
    found = KV_TYPES.get(name) if isinstance(name, str) else None
    if found is None:
        raise ArgumentError(f"{kernel}: kv_type must be one of {', '.join(KV_TYPES)}, got {literal(name)}")
    return found


def _half(x: NDArray[Any]) -> NDArray[Any]:
    """The most that rounding to f16 changes values up to x."""
    half: NDArray[Any] = np.maximum(x * 2.0**-11, 2.0**-25)
    return half


def _codes(values: NDArray[Any], scales: NDArray[Any], unknown: int, up: int) -> NDArray[Any]:
    """The codes of values that three roundings moved up (1), down (-1) or not at all (0); `unknown` where a scale may be 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers = values / scales
    numbers = np.where(scales > 0, numbers + up * np.abs(numbers) * 4 * UNIT, unknown)
    codes: NDArray[Any] = np.sign(numbers) * np.floor(np.minimum(np.abs(numbers), LARGEST_CODE) + 0.5)
    return codes
