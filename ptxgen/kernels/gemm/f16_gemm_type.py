"""What every matrix product on f16 parts of activations has in common: arguments, reference, error bound, accuracy. A kernel
defines how blocks share the product, its launch, its emission and how its sums are rounded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Signature, read
from ptxgen.dsl.kernel_type import HalfForm, Work
from ptxgen.dsl.launch_config import DEPENDENT_SM
from ptxgen.errors import ArgumentError
from ptxgen.formats import ALL, Format
from ptxgen.kernels.accuracy import gamma, product_errors, with_outlier
from ptxgen.kernels.gemm.block_grid import BlockGrid
from ptxgen.kernels.gemm.epilogue import GemmEpilogue
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.quantize.f16_split import STEPS, SUMMED, WINDOW, arrays, pack, sums_of, values, windows_of
from ptxgen.kernels.shape import require
from ptxgen.types import U8

IN_HALVES: dict[str, Format] = {format.id: format for format in ALL.values() if format.half_run}
"""The formats with integers in f16 by what kernel names start with."""

CATALOGUED = tuple(IN_HALVES[id] for id in ("q4k", "q5k", "q6k", "q6k_aligned"))
"""The formats that have these kernels in the catalogue. Of others a kernel is made by its class."""

PRODUCT_ROUNDINGS = 8
"""Roundings beside those of sums: the reference's weight (3), the products with the scales of weights (2) and activations, and
what parts of a product are left out where an integer has a low register (2: both are under 2^-11 of what they belong to)."""

SUM_UNITS = 3
"""What a sum of n products by tensor cores is off by, in units of 2^-24 of the sum of their magnitudes for each of them:
whether they round as the emulator or cut as GPUs do (tests/ptxgen/isa/fragments.py)."""

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class F16GemmType(GemvType):
    """Y = X W^T on f16 parts of activations (ptxgen/kernels/quantize). y: f32[m, n]; w: u8[n, row_bytes], rows of k quantised
    values; halves, scales: as pack_halves writes them for m rows of k activations, in `parts` f16 each and the order that the
    format asks for. With `residual` Y += X W^T, in place, with the bits of the product and residual_add. A second and a third
    matrix of `blocks` have the arguments w2 and y2, w3 and y3. With `pdl` the kernel waits for the one before it by itself."""

    family: ClassVar[str] = "gemm"
    emulator_bits: ClassVar[bool] = False
    dependent_form: ClassVar[Mapping[str, Any]] = {"pdl": True}
    m: int = field(kw_only=True)
    parts: int = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.format.half_run:
            raise ArgumentError(f"{self.format} has no integers in f16; formats that have: {', '.join(IN_HALVES)}")
        require(self, "m")
        require(self, "parts", high=2)

    @property
    @abstractmethod
    def pdl(self) -> bool:
        """A field: whether it waits by itself."""

    @property
    @abstractmethod
    def residual(self) -> bool:
        """A field: whether the product is added to y."""

    @property
    @abstractmethod
    def blocks(self) -> BlockGrid:
        """The matrices, and what each block of threads has of them."""

    @property
    def least_sm(self) -> int:
        return self.only_on.sm if self.only_on is not None else DEPENDENT_SM if self.pdl else 80

    @property
    def activation_f16_split(self) -> HalfForm:
        return HalfForm(self.parts, self.format.half_run)

    @property
    def epilogue(self) -> GemmEpilogue:
        """What is done with the product."""
        return GemmEpilogue(self.residual)

    @property
    def windows(self) -> int:
        """Windows of a row, the last of which may be partial."""
        return windows_of(self.k)

    @property
    def scratch(self) -> tuple[str, ...]:
        return tuple(self.blocks.arguments())

    def signature(self) -> Signature:
        first, *others = (
            {
                f"y{number}": self.epilogue.argument(self.m, n),
                f"w{number}": read(U8, n, self.format.row_bytes(self.k), constant=True),
            }
            for number, n in self.blocks.numbered()
        )
        arguments: Signature = {**first, **arrays(self.m, self.k, self.activation_f16_split, "in")}
        for other in others:
            arguments |= other
        return arguments | self.blocks.arguments()

    def reference(self, **arguments: Any) -> Mapping[str, F64]:
        x, results, sums = self._activations(arguments), {}, []
        for number, weights in self._weights(arguments):
            results[f"y{number}"] = self.epilogue.reference(arguments[f"y{number}"], x @ weights.T)
            sums.append([x[:, part] @ weights[:, part].T for part in self.blocks.slices_of(WINDOW)])
        return results | self.blocks.scratch_of(sums)

    def tolerance(self, **arguments: Any) -> Mapping[str, F64]:
        """gamma(chain) * sum (|w_i| + 2 M) |x_i|, where M is the largest minimum a block can have, and what the epilogue adds.
        Minima are multiplied with sums of 16 activations, which were rounded on their own: M for each unit that they differ
        from the sums of the activations that the f16 split stands for."""
        x, bounds, sums = self._activations(arguments), {}, []
        summed = np.zeros((self.m, self.windows * STEPS))
        summed[:, : self.k // SUMMED] = x.reshape(self.m, -1, SUMMED).sum(axis=2)
        off = np.abs(sums_of(arguments["halves"], arguments["scales"]) - summed)[:, : self.k // SUMMED]
        for number, weights in self._weights(arguments):
            minima = self.format.largest_minima(arguments[f"w{number}"])
            sizes = np.abs(weights) + 2 * minima

            def bound(values: slice, steps: slice, sizes: F64 = sizes, minima: F64 = minima) -> F64:
                rounded = gamma(self.chain + PRODUCT_ROUNDINGS) * (np.abs(x)[:, values] @ sizes[:, values].T)
                of_sums = off[:, steps] @ minima[:, ::SUMMED][:, steps].T
                within: F64 = rounded + of_sums + np.finfo(np.float32).tiny
                return within

            product = bound(slice(None), slice(None))
            bounds[f"y{number}"] = self.epilogue.bound(arguments[f"y{number}"], x @ weights.T, product)
            sums.append([bound(*part) for part in zip(*map(self.blocks.slices_of, (WINDOW, STEPS)), strict=True)])
        return bounds | self.blocks.scratch_of(sums)

    def _activations(self, arguments: Mapping[str, Any]) -> F64:
        return values(arguments["halves"], arguments["scales"], self.activation_f16_split, self.k)

    def _weights(self, arguments: Mapping[str, Any]) -> Iterator[tuple[str, F64]]:
        """Of each matrix, by what follows the names of its arguments."""
        for number, _ in self.blocks.numbered():
            yield number, self.format.dequantize(arguments[f"w{number}"]).astype("f8")

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """As of f32 activations, and their f16 split. Counters are zeros, and what partials hold counts for nothing."""
        inputs: dict[str, Any] = {}
        for number, n in self.blocks.numbered():
            x = with_outlier(rng, self.m, self.k)
            inputs[f"w{number}"] = self.format.random_blocks(rng, n, self.k)
            inputs[f"y{number}"] = self.epilogue.inputs(rng, self.m, n)
            if not number:
                inputs |= pack(x, self.activation_f16_split)._asdict()
        return inputs | self.blocks.scratch_inputs()

    def accuracy(self, rng: np.random.Generator) -> dict[str, float]:
        """The root mean square error of y against f32 activations, relative to that of y: see product_errors. What a kernel
        rounds beyond its reference is in `tolerance`."""
        form = self.activation_f16_split
        return product_errors(rng, self.format, self.k, lambda x: values(*pack(x, form), form, self.k))

    def work(self) -> Work:
        arrays = (array for name, array in self.signature().items() if name not in self.scratch)
        read_or_written = sum(array.nbytes for array in arrays if isinstance(array, Array))
        results = self.m * sum(self.blocks.matrices)
        added = self.epilogue.work(results)
        return Work(flops=2 * results * self.k + added.flops, bytes=read_or_written + added.bytes)
