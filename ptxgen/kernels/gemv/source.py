"""The source of a GEMV on int8 planes: where the planes of its activations come from. They are plain; or those of a deferred
RMSNorm, which the kernel completes; or parts of a row, each made by a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Scalar, Signature, read
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.errors import ArgumentError
from ptxgen.kernels.accuracy import gamma
from ptxgen.kernels.collective.all_gather import MOST_RANKS
from ptxgen.kernels.collective.plane_words import PlaneWords
from ptxgen.kernels.gemv.fragments import FragmentLane
from ptxgen.kernels.gemv.received_planes import ReceivedPlanes, in_parts, received_arguments, whole_row
from ptxgen.kernels.gemv.shared_planes import Layout, NormOfReader, SharedPlanes
from ptxgen.kernels.norm.rmsnorm import root_units
from ptxgen.kernels.norm.squares import total_chain
from ptxgen.kernels.quantize.int8_planes import BLOCK, values
from ptxgen.kernels.shape import require_of
from ptxgen.types import F32, U32, U64


@dataclass(frozen=True)
class PlaneSource:
    """The int8 planes of `batch` tokens of k activations each.

    normed: the activations are a deferred RMSNorm: digits, scales and sums stand for gamma * x, and the kernel multiplies the
    scales by 1 / sqrt(mean(x^2) + eps), with the bits of rmsnorm_digits and the kernel without `normed`. squares: f32[k / 32],
    the sums of x^2 of each 32 (kernels/norm/squares.py); eps: f32 scalar. For one token.

    row_parts: so many ranks have made the planes of a part of the row each. Of digits, scales, sums and squares this rank's
    part is read, and that of each other rank as words that it has sent, or is sending, as send_digits does. inbox:
    u64[row_parts, words]; number: u32[1], of the message that each block waits for, a bounded time; rank: u32. 1: all of the
    row is there."""

    k: int
    digits: int
    batch: tuple[int, ...] = ()
    normed: bool = False
    row_parts: int = 1

    @property
    def tokens(self) -> int:
        """Rows of activations."""
        return prod(self.batch)

    @property
    def part_words(self) -> PlaneWords:
        """What is received of a part."""
        return PlaneWords(self.k // self.row_parts, self.digits, self.normed)

    @property
    def static_bytes(self) -> int:
        """Bytes of static shared memory beside the staged activations."""
        return F32.bytes * self.k // BLOCK if self.row_parts > 1 and self.normed else 0

    def check(self, kernel: str, *, pdl: bool) -> None:
        """ArgumentError for activations that the kernel of this name cannot have."""
        if self.normed and self.tokens > 1:
            raise ArgumentError(f"{kernel} takes one row that it normalises by itself, got {self.tokens}")
        require_of(kernel, self, "row_parts", high=MOST_RANKS)
        if self.row_parts > 1:
            require_of(kernel, self, "k", multiple=BLOCK * self.row_parts)
            if self.tokens > 1 or pdl:
                raise ArgumentError(f"{kernel} takes one row in parts, without pdl, got {self.tokens}, {pdl=}")

    def signature(self, arguments: Signature) -> Signature:
        """The arguments of a kernel, of which those of plain planes are given."""
        norm: Signature = {"squares": read(F32, self.k // BLOCK), "eps": Scalar(F32, low=0.0)} if self.normed else {}
        whole = {**arguments, **norm}
        return received_arguments(whole, self.part_words, self.row_parts) if self.row_parts > 1 else whole

    def staged(self, k: KernelBuilder, layout: Layout, lane: FragmentLane, *, dynamic: bool) -> SharedPlanes:
        """The activations in shared memory, which the launch asks for where it is dynamic."""
        if self.row_parts > 1:
            return ReceivedPlanes(k, layout, lane, dynamic=dynamic, words=self.part_words, parts=self.row_parts)
        return SharedPlanes(k, layout, lane, dynamic=dynamic, norm=NormOfReader(k, self.k) if self.normed else None)

    def exact(self, arguments: Mapping[str, Any]) -> NDArray[np.float64]:
        """The activations that these arguments stand for, f64[*batch, k]."""
        if self.row_parts > 1:
            arguments = {**arguments, **whole_row(arguments, self.part_words, self.row_parts)}
        x = values(arguments["digits"], arguments["scales"]).reshape(*self.batch, self.k)
        if self.normed:
            x = x / np.sqrt(arguments["squares"].astype("f8").sum() / self.k + float(arguments["eps"]))
        return x

    @property
    def relative_bound(self) -> float:
        """What the kernel may add to the relative error of the activations: the root of the sum of the squares, a product."""
        return gamma(ceil(root_units(chain=0, tree=total_chain(self.k // BLOCK))) + 1) if self.normed else 0.0

    def inputs(self, rng: np.random.Generator, inputs: dict[str, Any]) -> dict[str, Any]:
        """Random arguments, of which those of plain planes are given."""
        if self.normed:
            inputs |= {"squares": rng.chisquare(BLOCK, self.k // BLOCK).astype(np.float32), "eps": np.float32(1e-5)}
        return in_parts(rng, inputs, self.part_words, self.row_parts) if self.row_parts > 1 else inputs

    @property
    def bytes(self) -> int:
        """Bytes read: planes, scales and sums; squares; a word for each 4 bytes that another rank has sent."""
        plain = self.tokens * (self.digits * self.k + 8 * self.k // BLOCK)
        received = (self.row_parts - 1) * self.part_words.count * (U64.bytes - U32.bytes)
        return plain + received + (F32.bytes * self.k // BLOCK if self.normed else 0)
