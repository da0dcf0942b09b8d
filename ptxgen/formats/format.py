"""The contract of a weight format: its block, and how a lane decodes its share of one. Each format is one file beside this one;
which lane decodes what is a strategy's business (ptxgen/kernels/gemv), and so is what is done with the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, Index
from ptxgen.dsl.value import Value
from ptxgen.errors import ArgumentError
from ptxgen.formats.half_weights import HalfWeights
from ptxgen.formats.packed import BlockPiece, Bytes, Run, region
from ptxgen.types import U32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

F = TypeVar("F", bound="type[Format]")


class Weight(NamedTuple):
    """A decoded weight: f32, `offset` values after the first value of its lane's column."""

    offset: int
    value: Value


Decoder = Callable[[Index], list[Weight]]
"""Decodes the group of this number (a constant or a u32) at the place of its reader."""


class ScaleField(NamedTuple):
    """An f16 in a block that random blocks must set: `size` / sqrt(K), give or take a half, of either sign if `signed`."""

    offset: int  # bytes from the start of the block
    size: float
    signed: bool = False


class LargestMinimum(NamedTuple):
    """A run's minimum is at most `factor` times the f16 at byte `offset` of its block."""

    offset: int
    factor: float


@dataclass(frozen=True)
class LaneAddress:
    """Where a lane reads: u8 arrays that start at its block and `column` bytes further, and that column (a u32 or constant)."""

    block: Bytes
    lane: Bytes
    column: Index

    def at(self, offset: int, group: Index, stride: int) -> Bytes:
        """The bytes of the lane's column in the region at `offset`, which has `stride` bytes a group."""
        return region(self.lane, offset, group, stride)

    def header(self, k: KernelBuilder, words: int) -> Sequence[Value]:
        """The first `words` (2 or 4) u32 of the block, which must be aligned to them. A strategy whose lanes share a block may
        have loaded them together."""
        return k.load_vector(self.block[0], words, U32)


class Format(ABC):
    """A block format. Its instances are the entries of `ptxgen.formats.FORMATS`, GGML's, and of `REPACKED`, which are made of
    those.

    A block of `block` values is `groups` groups of `columns` columns of `depth` values: column j of group g holds the values
    (g * depth + t) * columns + j for t < depth, because GGML packs values that are `columns` apart into the same byte. A lane
    that takes columns side by side (the `width` of its reader) reads as many bytes of codes in one load.

    A format that can be decoded to packed 8-bit codes says how many columns make a fragment (`packed_width`), the work of one
    lane, and how many values of each column are in it (`packed_depth`), and defines `load_packed` and `unpack`. These count
    groups of `packed_depth` values a column, `packed_groups` in a block.

    A format whose weights are scales times integers that f16 holds exactly says how many neighbouring values of a window of
    256 a lane of a quad takes (`half_run`), and defines `load_halves` and `unpack_halves`. With a run of 64 lane t has the 64
    values from 64 t on, and in step s the four from 64 t + 4 s on; with a run of 4 it has the four from 16 s + 4 t on."""

    name: ClassVar[str]
    common: ClassVar[bool] = True
    """Whether every strategy has a registered kernel of it, with all sample shapes. Else those have that the executor chooses
    by itself or that suit prompts, the basic GEMV and dp4a, with one sample shape each; of others a kernel is made by its
    class."""
    id: ClassVar[str]
    """What kernel names start with."""
    ggml_type: ClassVar[int | None]
    """What GGUF files call it; None for a format that no file has."""
    block: ClassVar[int]
    block_bytes: ClassVar[int]
    groups: ClassVar[int] = 1
    columns: ClassVar[int]
    depth: ClassVar[int]
    widths: ClassVar[tuple[int, ...]]
    """How many columns a reader may take at once. Where a block is one value: so many blocks, whose address must be aligned to
    their size."""
    scales: ClassVar[tuple[ScaleField, ...]] = ()
    header_bytes: ClassVar[int] = 0
    """What of the start of a block its reader takes by `LaneAddress.header`."""
    packed_width: ClassVar[int] = 0
    """Columns of a fragment; 0 for a format without packed codes."""
    shared_bytes: ClassVar[int] = 1
    """So many neighbouring fragments have their codes in the same bytes: a fragment has `depth` / `shared_bytes` values of a
    column."""
    scale_values: ClassVar[int] = 32
    """Consecutive values that have one scale, of a format with packed codes: 16 or 32."""
    minimum: ClassVar[LargestMinimum | None] = None
    """How large the minima of its runs can be; None for a format whose runs have none."""

    half_run: ClassVar[int] = 0
    """Neighbouring values of a lane that decodes to integers in f16: 64 or 4; 0 for a format that does not."""

    half_low: ClassVar[bool] = False
    """Whether these integers have more than 11 bits, so that a second f16 has what the first lacks (HalfStep.low)."""
    half_bytes: ClassVar[int] = 0
    """Bytes that such a lane loads of a block in `half_pieces`; 0 where blocks are not aligned to 16, or what it takes of them
    is not in pieces of as much as 8."""

    @abstractmethod
    def reader(self, k: KernelBuilder, place: LaneAddress, width: int = 1) -> Decoder:
        """Write what all groups of the block at `place` share (scales), and return what decodes a group's columns `column` to
        `column + width - 1` to the very f32 values of gguf-py's dequantize; with a width over 1, scales must be finite, and a
        zero may be +0 where gguf-py has -0."""

    def load_packed(self, k: KernelBuilder, place: LaneAddress, group: Index) -> tuple[Value, ...]:
        """Write the loads of the fragment at the place's column of this group, and nothing else, so that a strategy can put
        them far ahead of their use."""
        raise ArgumentError(f"{self.name} has no packed 8-bit codes")

    def unpack(self, k: KernelBuilder, raw: Sequence[Value], group: Index) -> list[Run]:
        """The runs of the fragment, from what `load_packed` loaded."""
        raise ArgumentError(f"{self.name} has no packed 8-bit codes")

    def half_lane(self, k: KernelBuilder, number: Value) -> tuple[Value, ...]:
        """What the rows and windows of lane `number` (u32) of a quad have in common, for the two methods below."""
        return (number,)

    def load_halves(self, k: KernelBuilder, window: GlobalArray, lane: Sequence[Value], last: Index) -> tuple[Value, ...]:
        """Write the loads of a lane's share of 256 values, and nothing else, so that a kernel can put them far ahead of their
        use. window: the row from the first block of them on; last: the number of the row's last block from there on, after
        which nothing is read."""
        raise ArgumentError(f"{self.name} has no integers in f16")

    def f16_pieces(self, window: Bytes, lane: Sequence[Value]) -> tuple[BlockPiece, ...]:
        """What `load_halves` loads, in pieces of 8 or 16 bytes, in its order, `half_bytes` in all: kernels may copy them ahead
        of time and give `unpack_halves` their words."""
        raise ArgumentError(f"{self.name} has no blocks that are aligned to 16 bytes")

    def unpack_halves(self, k: KernelBuilder, raw: Sequence[Value], lane: Sequence[Value]) -> HalfWeights:
        """The lane's share of the weights, from what `load_halves` loaded. Past the row's last block they may be anything
        finite."""
        raise ArgumentError(f"{self.name} has no integers in f16")

    @property
    def has_minimum(self) -> bool:
        """Whether its runs have a minimum."""
        return self.minimum is not None

    def largest_minima(self, raw: NDArray[np.uint8]) -> NDArray[np.float64]:
        """An upper bound of the minimum of each weight in rows of blocks: u8[rows, row_bytes] -> f64[rows, k]."""
        import numpy as np

        blocks = raw.reshape(len(raw), -1, self.block_bytes)
        if self.minimum is None:
            return np.zeros((len(raw), blocks.shape[1] * self.block))
        offset, factor = self.minimum
        stored = np.ascontiguousarray(blocks[..., offset : offset + 2]).view("<f2")[..., 0].astype("f8")
        return np.repeat(factor * np.abs(stored), self.block, axis=1)

    @property
    def fragments(self) -> int:
        """Fragments of a block."""
        return self.packed_groups * self.columns // self.packed_width

    @property
    def packed_depth(self) -> int:
        """Values of a column in a fragment."""
        return self.depth // self.shared_bytes

    @property
    def packed_groups(self) -> int:
        """Groups of so many values a column in a block."""
        return self.groups * self.shared_bytes

    @property
    def fragment_values(self) -> int:
        """Values of a fragment."""
        return self.packed_depth * self.packed_width

    @property
    def align(self) -> int:
        """The largest power of two, up to 16 bytes, that every block of a 16-byte aligned tensor starts on a multiple of."""
        return min(16, self.block_bytes & -self.block_bytes)

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of k values. Raises ArgumentError if k is not a positive multiple of the block."""
        if k <= 0 or k % self.block:
            raise ArgumentError(f"{self.name} rows have a positive multiple of {self.block} values, got {k}")
        return k // self.block * self.block_bytes

    def random_blocks(self, rng: np.random.Generator, rows: int, k: int) -> NDArray[np.uint8]:
        """Valid blocks, u8[rows, row_bytes]: all codes likely, scales finite, the spread of weights about 1/sqrt(k)."""
        import numpy as np

        count = rows * self.row_bytes(k) // self.block_bytes
        blocks = rng.integers(0, 256, (count, self.block_bytes), dtype=np.uint8)
        for scale in self.scales:
            values = scale.size / k**0.5 * rng.uniform(0.5, 1.5, count)
            if scale.signed:
                values *= rng.choice([-1.0, 1.0], count)
            self.write_scale(blocks, scale, values.astype("<f2"))
        return blocks.reshape(rows, -1)

    def write_scale(self, blocks: NDArray[np.uint8], scale: ScaleField, values: NDArray[np.float16]) -> None:
        """Set an f16 of each block. blocks: u8[n, block_bytes]; values: f16[n]."""
        blocks[:, scale.offset : scale.offset + 2] = values[:, None].view("u1")

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """gguf-py's f32 values of rows of blocks: u8[..., row_bytes] -> f32[..., k]. The reference, not what kernels do."""
        import gguf
        import numpy as np

        assert self.ggml_type is not None, f"{self.name} must say what its values are"
        values = gguf.quants.dequantize(np.ascontiguousarray(raw), gguf.GGMLQuantizationType(self.ggml_type))
        return np.asarray(values, np.float32).reshape(*raw.shape[:-1], -1)

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    def __reduce__(self) -> tuple[Callable[[str], Format], tuple[str]]:
        return _named, (self.name,)


class RepackedFormat(Format):
    """A format that no file has: its blocks are made of those of `native` when weights are loaded, because kernels read them
    faster. A block is made of one of those or of several, and holds all that they hold: the weights are the same to the last
    bit."""

    ggml_type = None
    native: ClassVar[Format]
    repack_threads: ClassVar[int]
    """Threads that make a block."""

    @abstractmethod
    def repack(self, k: KernelBuilder, native: GlobalArray, block: GlobalArray, thread: Value) -> None:
        """Write what the thread of this number (u32, below `repack_threads`) does to make a block of those of `native` that
        have its values: u8 arrays that start at them."""

    @abstractmethod
    def pack(self, native: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The blocks of rows of native ones: u8[..., native row bytes] -> u8[..., row_bytes]."""

    @abstractmethod
    def unpack_native(self, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The native blocks that rows were made of: what `pack` took."""

    @property
    def native_bytes(self) -> int:
        """Bytes of the native blocks that a block is made of."""
        return self.native.row_bytes(self.block)

    def random_blocks(self, rng: np.random.Generator, rows: int, k: int) -> NDArray[np.uint8]:
        """Those of `native`, packed."""
        return self.pack(self.native.random_blocks(rng, rows, k))

    def dequantize(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """gguf-py's f32 values of the native blocks."""
        return self.native.dequantize(self.unpack_native(raw))

    def largest_minima(self, raw: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Those of the native blocks."""
        return self.native.largest_minima(self.unpack_native(raw))


_formats: list[Format] = []


def register_format(cls: F) -> F:
    """Class decorator: an instance of the format becomes an entry of FORMATS, or of REPACKED if no file has it."""
    _formats.append(cls())
    return cls


def _named(name: str) -> Format:
    return registered()[name]


def registered() -> dict[str, Format]:
    """The formats that have been imported, by their names: GGML's in the order of its type ids, then those that no file has."""
    return {format.name: format for format in sorted(_formats, key=_order)}


def _order(format: Format) -> tuple[bool, int, str]:
    return format.ggml_type is None, format.ggml_type or 0, format.name
