"""What every f32 matrix-vector kernel has in common: arguments, reference, error bound, work, sample cases. A strategy says
the launch, the emission and how long its chains of additions are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Signature, read, write
from ptxgen.dsl.kernel_type import HIDDEN, HalfForm, KernelType, Work
from ptxgen.formats import Format, find
from ptxgen.kernels.accuracy import gamma, with_outlier
from ptxgen.kernels.quantize import f16_split, int8_planes
from ptxgen.kernels.shape import require
from ptxgen.types import F32, U8

G = TypeVar("G", bound="GemvType")

# (k, n) of models, n cut down to a few rows: SmolLM2, Qwen2.5 1.5B, 0.5B and 7B. Then one block of any format, and one row.
SHAPES = ((576, 7), (1536, 13), (896, 5), (18944, 3), (256, 1), (32, 31))
MORE_SHAPES = ((4864, 3), (2048, 9), (3584, 6), (4096, 11), (14336, 2))
"""The other sizes of these models and of Llama 1B and 8B, for Q4_K and Q6_K, which such models come in."""

MODELS = find("Q4_K")
"""The format whose sample shapes are those of models where a strategy goes along the rows of all formats in one way."""


def model_cases(
    cls: type[G], fixed: Mapping[str, Any], *shapes: Sequence[int], setting: str = "", **narrow: Any
) -> Iterator[G]:
    """The sample shapes (k, n and perhaps a setting of the strategy) for MODELS. For the other formats one row suffices, with
    the settings `narrow`: a few blocks, a partial step of small ones. So conformance tries no sizes but a row of one block."""
    format = find(fixed["format"])
    if format is not MODELS:
        yield cls(k={1: 300, 32: 9 * 32}.get(format.block, 4 * format.block), n=1, **narrow, **fixed)
        return
    for shape in shapes:
        named: dict[str, Any] = dict(zip(("k", "n", setting), shape, strict=False))
        yield cls(**named, **fixed)


def gemv_arguments(
    format: Format, k: int, n: int, batch: tuple[int, ...] = (), digits: int = 0, halves: HalfForm | None = None
) -> Signature:
    """The arguments of a matrix-vector kernel for n rows of k weights. y: f32[*batch, n]; w: u8[n, row_bytes]; x: f32[*batch,
    k], or the int8 planes or the f16 split of activations that stand for it: one row of them where there is no batch."""
    if halves is not None:
        vector: Signature = {**f16_split.arrays(prod(batch), k, halves, "in")}
    elif digits:
        vector = {**int8_planes.arrays(prod(batch), digits, k, "in")}
    else:
        vector = {"x": read(F32, *batch, k)}
    return {"y": write(F32, *batch, n), "w": read(U8, n, format.row_bytes(k), constant=True), **vector}


@dataclass(frozen=True)
class GemvType(KernelType):
    """y = W x. y: f32[n]; w: u8[n, row_bytes], rows of k quantised values; x: f32[k]. `name_pattern` is the name, with
    `{format}` for the format's id."""

    format: Format = field(metadata=HIDDEN)
    k: int = field(kw_only=True)  # by name: matrices are (n, k) elsewhere
    n: int = field(kw_only=True)

    family: ClassVar[str] = "gemv"
    batched_alike = False  # the form for several rows is mwv's, whatever the strategy
    name_pattern: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", find(self.format))
        require(self, "k", multiple=self.format.block)
        require(self, "n")

    @property
    def name(self) -> str:
        return self.name_pattern.format(format=self.format.id)

    @property
    @abstractmethod
    def chain(self) -> int:
        """The most roundings that any product goes through on its way into the sum."""

    @property
    def batch(self) -> tuple[int, ...]:
        """The dimension of x and y before the last: the rows of activations, where there may be several."""
        return ()

    def signature(self) -> Signature:
        return gemv_arguments(self.format, self.k, self.n, self.batch, self.activation_planes, self.activation_f16_split)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[np.float64]]:
        weights, x = self._in_float64(arguments)
        return {"y": x @ weights.T}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[np.float64]]:
        """gamma(chain) * sum |w_i x_i|. Weights are decoded to the very values of the reference, so nothing else rounds; the
        smallest normal number covers underflow."""
        weights, x = self._in_float64(arguments)
        return {"y": gamma(self.chain) * (np.abs(x) @ np.abs(weights).T) + np.finfo(np.float32).tiny}

    def _in_float64(self, arguments: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self.format.dequantize(arguments["w"]).astype("f8"), arguments["x"].astype("f8")

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Random weights; activations that are normal but for one outlier channel."""
        x = with_outlier(rng, *self.batch, self.k)
        y = np.full((*self.batch, self.n), np.nan, np.float32)
        return {"y": y, "w": self.format.random_blocks(rng, self.n, self.k), "x": x}

    def work(self) -> Work:
        arrays = GemvType.signature(self).values()
        read_and_written = sum(array.nbytes for array in arrays if isinstance(array, Array))
        return Work(flops=2 * prod(self.batch) * self.k * self.n, bytes=read_and_written)

    @classmethod
    def cases(cls: type[G], **fixed: Any) -> Iterator[G]:
        format = find(fixed["format"])
        for k, n in (*SHAPES, *(MORE_SHAPES if format.name in ("Q4_K", "Q6_K") else ())):
            if k % format.block == 0:
                yield cls(k=k, n=n, **fixed)
        if format.block == 1:
            yield cls(k=1, n=2, **fixed)
            yield cls(k=97, n=3, **fixed)
        else:
            yield cls(k=3 * format.block, n=5, **fixed)
