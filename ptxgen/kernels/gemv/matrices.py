"""The segments of a GEMV on int8 planes: which matrices a launch multiplies by the same activations, and which of them a block
of threads, or a warp, has rows of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.parts import KernelPart
from ptxgen.errors import ArgumentError
from ptxgen.formats import Format
from ptxgen.kernels.gemv.blocks import MOST_RESIDENT, Blocks
from ptxgen.kernels.gemv.samples import NARROW
from ptxgen.kernels.gemv.shared_planes import chunks
from ptxgen.kernels.shape import require_of
from ptxgen.types import F32, U8


class MatrixOperand(NamedTuple):
    """A matrix of n rows. number: 1 for the first; own: whether it has a result of its own, `y` with the number behind."""

    number: int
    n: int
    format: Format
    own: bool = True

    def argument(self, name: str) -> str:
        """The name of the matrix's argument that the first one's is called so."""
        return name if self.number == 1 else f"{name}{self.number}"

    def signature(self, k: int) -> Signature:
        """Its arguments, for rows of k weights."""
        result: Signature = {self.argument("y"): write(F32, self.n)} if self.own else {}
        return {**result, self.argument("w"): read(U8, self.n, self.format.row_bytes(k), constant=True)}


@dataclass(frozen=True)
class OneMatrix(KernelPart):
    """y: f32[n]; w: u8[n, row_bytes]."""

    prefix: ClassVar[str] = ""
    """What it adds to the name of a kernel."""
    implied: ClassVar[tuple[str, ...]] = ()
    """Suffixes of epilogues that the name of a kernel with this prefix leaves out."""
    weights: ClassVar[tuple[str, ...]] = ("w",)
    """See Blocks.weights."""
    formats: ClassVar[tuple[str, ...]] = ("format",)
    """The fields of the kernel whose formats its name has."""

    def check(self, kernel: str, last: Format | None) -> None:
        """Raise ArgumentError for fields that the kernel of this name cannot have."""
        if last is not None:
            raise ArgumentError(f"{kernel} has matrices of one format, got a last one of {last}")

    def matrices(self, n: int, format: Format, last: Format | None) -> tuple[MatrixOperand, ...]:
        """All matrices, of a kernel with these fields."""
        return (MatrixOperand(1, n, format),)

    def blocks(self, blocks: Blocks, last: Format | None) -> tuple[Blocks, ...]:
        """The blocks of a launch, by their format, made of those of a launch for the first matrix alone."""
        return (blocks,)


@dataclass(frozen=True)
class GateAndUp(OneMatrix):
    """Gate and up side by side: w, w2: u8[n, row_bytes]. A warp has the rows of one number of both, so that no warp waits for
    another; rows_per_warp, which is even, counts those of both together, a pair of rows for each result."""

    prefix: ClassVar[str] = "gated_"
    implied: ClassVar[tuple[str, ...]] = ("_planes",)
    weights: ClassVar[tuple[str, ...]] = ("w", "w2")

    def matrices(self, n: int, format: Format, last: Format | None) -> tuple[MatrixOperand, ...]:
        return (MatrixOperand(1, n, format), MatrixOperand(2, n, format, own=False))


@dataclass(frozen=True)
class Fused(OneMatrix):
    """Horizontally fused: two or, with n3, three matrices of n, n2 and n3 rows, such as q, k and v, with the bits of a launch
    each. y: f32[n], y2: f32[n2], y3: f32[n3]; w, w2, w3: u8[n, row_bytes] and so on. A block of threads has rows of one matrix;
    those of the second follow those of the first."""

    prefix: ClassVar[str] = "joined_"
    summary: ClassVar[str] = "for two or three matrices"
    n2: int
    n3: int = 0

    def check(self, kernel: str, last: Format | None) -> None:
        super().check(kernel, last)
        self._check_rows(kernel, least_of_third=0)

    def _check_rows(self, kernel: str, least_of_third: int) -> None:
        require_of(kernel, self, "n2")
        require_of(kernel, self, "n3", low=least_of_third)

    def matrices(self, n: int, format: Format, last: Format | None) -> tuple[MatrixOperand, ...]:
        rows = [one for one in (n, self.n2, self.n3) if one]
        return tuple(MatrixOperand(number, one, format) for number, one in enumerate(rows, 1))

    def blocks(self, blocks: Blocks, last: Format | None) -> tuple[Blocks, ...]:
        return (replace(blocks, matrices=tuple(one for one in (blocks.n, self.n2, self.n3) if one)),)

    @classmethod
    def samples(cls, fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Sample parameters of kernels with this part."""
        narrow = _without_ahead()
        yield {"k": 512, "n": 7, "n2": 2, "n3": 5, "digits": 3, **narrow}
        if fixed["format"].name == "Q4_K":
            yield {"k": 4096, "n": 33, "n2": 8, "digits": 3, "rows_per_warp": 2, "num_warps": 4}
            yield {"k": 1536, "n": 9, "n2": 4, "n3": 3, "digits": 3, "normed": True, **narrow}
            yield {"k": 4096, "n": 33, "n2": 8, "n3": 7, "digits": 3, "rows_per_warp": 3, "num_warps": 4, "stages": 2}
            yield {"k": 3584, "n": 9, "n2": 4, "n3": 3, "digits": 3, "normed": True, "row_parts": 4, **narrow}
            yield {"k": 18944, "n": 2, "n2": 4, "digits": 1, **narrow | {"num_warps": 1}}  # a loop


@dataclass(frozen=True)
class FusedWithAnother(Fused):
    """Horizontally fused with a third matrix of another format, `last`, as v is of a better one in some files. As Fused; w3:
    u8[n3, row_bytes] in `last`. The last blocks have rows of the third matrix, last_rows_per_warp a warp. The activations
    stand in shared memory as the format of a block's rows wants them, all at once."""

    prefix: ClassVar[str] = "mixed_"
    summary: ClassVar[str] = "for three matrices, the last of another format"
    formats: ClassVar[tuple[str, ...]] = ("format", "last")
    last_rows_per_warp: int = 2

    def check(self, kernel: str, last: Format | None) -> None:
        self._check_rows(kernel, least_of_third=1)
        require_of(kernel, self, "last_rows_per_warp", high=8)

    def matrices(self, n: int, format: Format, last: Format | None) -> tuple[MatrixOperand, ...]:
        assert last is not None
        return (MatrixOperand(1, n, format), MatrixOperand(2, self.n2, format), MatrixOperand(3, self.n3, last))

    def blocks(self, blocks: Blocks, last: Format | None) -> tuple[Blocks, ...]:
        assert last is not None
        if last == blocks.format:
            raise ArgumentError(f"{blocks.name} is for two formats, got {last} for both: one is joined_hw_dp4a's")
        if any(len(chunks(format, blocks.k, 1, blocks.digits)) > 1 for format in (blocks.format, last)):
            raise ArgumentError(f"{blocks.name}: {blocks.digits} planes of k={blocks.k} do not fit shared memory at once")
        first = replace(blocks, matrices=(blocks.n, self.n2), beside=True)
        of_last = replace(
            first,
            format=last,
            matrices=(self.n3,),
            rows_per_warp=self.last_rows_per_warp,
            # As many threads at once as of the first.
            resident_threads=min(MOST_RESIDENT, blocks.resident_threads * last.shared_bytes),
            first=first.count,
            number=3,
        )
        return first, of_last

    @classmethod
    def samples(cls, fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        narrow = _without_ahead() | {"last_rows_per_warp": 1}
        yield {"k": 512, "n": 7, "n2": 2, "n3": 5, "digits": 3, **narrow}
        if fixed["format"].name == "Q4_K":
            two = narrow | {"last_rows_per_warp": 2}
            yield {"k": 1536, "n": 9, "n2": 4, "n3": 11, "digits": 3, "normed": True, **two}
            if fixed["last"].block_bytes % 16 == 0:
                yield {"k": 3584, "n": 33, "n2": 8, "n3": 9, "digits": 3, "num_warps": 4, "rows_per_warp": 3, "stages": 2}
                yield {"k": 4096, "n": 9, "n2": 4, "n3": 5, "digits": 3, "normed": True, "row_parts": 2, **narrow}
            yield {"k": 1024, "n": 33, "n2": 8, "n3": 9, "digits": 1, "num_warps": 4, "rows_per_warp": 2}  # rows side by side


def _without_ahead() -> dict[str, Any]:
    return {name: value for name, value in NARROW.items() if name != "ahead"}
