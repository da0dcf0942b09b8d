"""The contract of a kernel: one frozen dataclass that says everything about it, so that the executor, the tests, the
golden files, the docs and the profiler need nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from ptxgen.errors import ArgumentError
from ptxgen.target import ALL, DEFAULT, FIRST_PTX, MAX_REGISTERS, Target
from ptxgen.types import U64, DType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ptxgen.dsl.builder import KernelBuilder

Direction = Literal["in", "out", "inout"]


def is_whole(value: object) -> bool:
    """Whether a value is an int; a bool is not one."""
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Array:
    """A pointer argument: row-major `shape` elements of `dtype` in global memory, the first on an `align`-byte boundary.
    partial: a launch reads or writes only some of them, so the others may hold anything, NaN included. constant: no
    launch that may still run writes it when this one starts, so a kernel that starts early may read it before it waits: the
    host wrote it (weights), or launches behind do, for a time to come (the position of a token). settled: as constant, but that
    the launch itself writes some elements, after its wait, which are none of those that it reads before (a cache, to which each
    token adds a row). zeros: it holds zeros before a launch, which leaves it so. addresses_of: its elements are the addresses
    of the argument of this name on every rank's device, in the order of the ranks (LaunchConfig.ranks), and the kernel has them
    as arrays: `k.arg.NAME[rank]`.
    ArgumentError if it is constant and written, settled or zeros and not both read and written, no constant u64[ranks] of
    addresses, or an extent is no positive integer: even a kernel type without checks refuses such a shape."""

    dtype: DType
    shape: tuple[int, ...]
    direction: Direction = "in"
    align: int = 16
    partial: bool = False
    constant: bool = False
    zeros: bool = False
    addresses_of: str = ""
    settled: bool = False

    def __post_init__(self) -> None:
        if self.constant and self.direction != "in":
            raise ArgumentError(f"an array cannot be constant and {self.direction}; what a launch writes is not constant")
        if self.settled and self.direction != "inout":
            raise ArgumentError(f"an array cannot be settled and {self.direction}; what a launch only reads is constant")
        if self.zeros and self.direction != "inout":
            raise ArgumentError(f"an array of zeros before and after cannot be {self.direction}; a launch updates it")
        # A model's launches have tens of thousands of arrays, whose extents are plain ints: these are told at once.
        if not self.shape or any((type(extent) is not int and not is_whole(extent)) or extent <= 0 for extent in self.shape):
            raise ArgumentError(f"no array has the shape {self.shape}; extents are positive integers")
        if self.addresses_of and (self.dtype != U64 or len(self.shape) != 1 or not self.constant):
            raise ArgumentError(f"the addresses of {self.addresses_of} are a constant u64[ranks], not {self}")

    @property
    def read_early(self) -> bool:
        """Whether a kernel that starts early may read it before it waits."""
        return self.constant or self.settled

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        return self.size * self.dtype.bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Scalar:
    """A value argument; `low` and `high` bound it (inclusive) where the kernel relies on that."""

    dtype: DType
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return str(self.dtype)


Argument = Array | Scalar
Signature = dict[str, Argument]
"""Arguments in the order of the entry's parameters."""


def read(dtype: DType, *shape: int, align: int = 16, partial: bool = False, constant: bool = False) -> Array:
    """An array that a launch reads."""
    return Array(dtype, shape, "in", align, partial, constant)


def write(dtype: DType, *shape: int, align: int = 16) -> Array:
    """An array that a launch fills."""
    return Array(dtype, shape, "out", align)


def update(
    dtype: DType, *shape: int, align: int = 16, partial: bool = False, zeros: bool = False, settled: bool = False
) -> Array:  # fmt: skip
    """An array that a launch reads and writes."""
    return Array(dtype, shape, "inout", align, partial, zeros=zeros, settled=settled)


def addresses(of: str, ranks: int) -> Array:
    """Where the argument `of` lies on the device of each rank."""
    return Array(U64, (ranks,), align=8, constant=True, addresses_of=of)


RING_SHARED: Final = 224 * 1024
"""Bytes of shared memory that a kernel `with_weight_ring` may ask for: nearly all that a block may have on sm_90 and sm_100."""

EARLY_SM: Final = 90
"""The oldest GPU on which a kernel can start early (see LaunchConfig)."""


@dataclass(frozen=True)
class LaunchConfig:
    """How many blocks and threads. `resident` is how many blocks a multiprocessor must be able to hold at once by their
    registers: it bounds what the assembler may use. `early`: the kernel waits for the one before it by itself
    (griddepcontrol), so it may start before that has ended: before it has waited it may read constant and settled arguments
    and touch nothing else, and no thread ends without having waited (conformance/early_start.py). `dynamic_shared`: bytes of
    shared memory of a block that the launch asks for (k.dynamic_shared), beside the arrays that the builder counts; for
    those that are too large to be static. `cooperative`: all blocks of the grid must be on the device at once, because they
    wait for each other (k.grid_barrier). `ranks`: so many launches, each on a device of its own, are one whole: they run at
    the same time and wait for each other (k.wait_for_peers). Each has the scalar `rank` (u32, from 0) that says which it is.
    `shared_room`: how many bytes of what it has for shared memory and for its L1 cache a multiprocessor should keep for
    shared memory, 0 for what the driver thinks: a hint, for kernels that follow each other. One that wants another share
    waits until the multiprocessor is empty. `most_registers`: of a thread, 0 for as many as `resident` blocks leave; so that
    blocks of the next kernel find some beside this one's. ArgumentError beyond 255."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    resident: int = 1
    early: bool = False
    dynamic_shared: int = 0
    cooperative: bool = False
    ranks: int = 1
    shared_room: int = 0
    most_registers: int = 0

    def __init__(
        self,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        resident: int = 1,
        early: bool = False,
        dynamic_shared: int = 0,
        cooperative: bool = False,
        ranks: int = 1,
        shared_room: int = 0,
        most_registers: int = 0,
    ) -> None:
        object.__setattr__(self, "grid", _three(grid))
        object.__setattr__(self, "block", _three(block))
        object.__setattr__(self, "resident", resident)
        object.__setattr__(self, "early", early)
        object.__setattr__(self, "dynamic_shared", dynamic_shared)
        object.__setattr__(self, "cooperative", cooperative)
        object.__setattr__(self, "ranks", ranks)
        object.__setattr__(self, "shared_room", shared_room)
        object.__setattr__(self, "most_registers", most_registers)
        if not (is_whole(most_registers) and 0 <= most_registers <= MAX_REGISTERS):  # assemblers pass over what cannot be
            raise ArgumentError(f"most_registers must be an integer, 0..{MAX_REGISTERS}, got {most_registers!r}")

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return prod(self.block)


def _three(size: int | tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = ((size,) if isinstance(size, int) else size) + (1,) * (2 if isinstance(size, int) else 3 - len(size))
    return x, y, z


@dataclass(frozen=True)
class Work:
    """What one launch has to do at least: floating-point or integer operations, and bytes read plus bytes written."""

    flops: int
    bytes: int


@dataclass(frozen=True)
class HalfForm:
    """In which form a kernel for f16 tensor cores reads activations (ptxgen/kernels/quantize/activation_halves.py). parts: how
    many f16 stand for a value, 1 or 2; lane_run: how many values in a row, 64 or 4, belong to one lane of a quad.
    ArgumentError for others."""

    parts: int
    lane_run: int

    def __post_init__(self) -> None:
        for name, allowed in (("parts", (1, 2)), ("lane_run", (4, 64))):
            value = getattr(self, name)
            if not is_whole(value) or value not in allowed:
                raise ArgumentError(f"activation halves have {name} {allowed[0]} or {allowed[1]}, got {value!r}")


MOST_CODE: Final = 64 * 1024
"""Bytes of machine code of a kernel: longer ones fall out of the instruction caches, and take seconds to assemble."""


@dataclass(frozen=True)
class KernelType(ABC):
    """Base of every kernel. A subclass is a frozen dataclass whose fields are its shape. What its arrays do not refuse it
    checks in `__post_init__`, which raises ArgumentError (`require` of shape.py does). `family` groups kernels in lists."""

    family: ClassVar[str]
    bit_free: ClassVar[tuple[str, ...]] = ()
    """The fields that say which thread computes a result and when, and not in which order: whatever they are, it has the same
    bits."""
    of_shape: ClassVar[tuple[str, ...]] = ()
    """Of these, the ones with a default that another shape may not have: what was measured for one says nothing of them for
    another."""
    emulator_bits: ClassVar[bool] = True
    """Whether a GPU gives the bits of the emulator. Not where it sums products of floats by mma.sync: PTX leaves the order and
    the rounding of that sum open. Then `tolerance` holds for both; launches on one GPU still give the same bits every time."""
    waits_inside: ClassVar[bool] = False
    """Whether `emit` says, by `k.wait_for_launch_before()`, where the kernel has to wait: in its early form it does the rest
    first. Others wait before all else."""
    frees_next_inside: ClassVar[bool] = False
    """Whether `emit` says, by `k.let_next_launch_start()`, from where on its early form lets the launch behind it start. Others
    let it at once."""
    most_code: ClassVar[int] = MOST_CODE
    """Bytes of machine code that it may have."""
    batched_alike: ClassVar[bool] = True
    """Whether a row has the bits that this kernel gives it in the forms of `batched`, too."""

    @property
    def scratch(self) -> tuple[str, ...]:
        """The arrays that are for the launches of this kernel alone, one after another: nobody else writes or reads them."""
        return ()

    only_on: ClassVar[Target | None] = None
    """The one target that it is written for, such as HOPPER, whose instructions no newer GPU has; None where every GPU from
    `least_sm` on runs it."""

    @property
    def least_sm(self) -> int:
        """The oldest GPU that it can be written for. A plain class attribute where all shapes have one."""
        return 75 if self.only_on is None else self.only_on.sm

    def targets(self) -> tuple[Target, ...]:
        """What it is assembled for in tests, the oldest first: the one that it is for alone, or those of ptxgen.target.ALL that
        it can be written for."""
        return tuple(target for target in ALL if target.sm >= self.least_sm) if self.only_on is None else (self.only_on,)

    def runs_on(self, gpu: Target) -> bool:
        """Whether it can be written so that this GPU runs it."""
        return gpu.sm >= self.least_sm if self.only_on is None else gpu.sm == self.only_on.sm

    @property
    def least_target(self) -> Target:
        """What it is written for where no target is named: the oldest GPU that it can be for, from ptxgen.target.DEFAULT on.
        ArgumentError if there is none."""
        if self.only_on is not None:
            return self.only_on
        known = (Target(sm) for sm in FIRST_PTX if sm >= DEFAULT.sm)
        least = next((target for target in known if self.runs_on(target)), None)
        if least is None:
            listed = ", ".join(f"sm_{sm}" for sm in FIRST_PTX)
            raise ArgumentError(f"{self.name} {self._needs()}, and no known target is; known: {listed}")
        return least

    def target_for(self, gpu: Target | None) -> Target:
        """What to write it for, so that this GPU runs it: sm_90a on an sm_90 for a kernel that is for that alone;
        `least_target` where no GPU is named. ArgumentError on a GPU that the kernel cannot be for."""
        if gpu is None:
            return self.least_target
        if not self.runs_on(gpu):
            raise ArgumentError(f"{self.name} {self._needs()}, and the target is {gpu}")
        return gpu if self.only_on is None else self.only_on

    def _needs(self) -> str:
        if self.only_on is not None:
            return f"is written for {self.only_on} alone"
        return f"needs sm_{self.least_sm} or newer"

    @property
    @abstractmethod
    def name(self) -> str:
        """What `ptxgen list` shows, and the name of the PTX entry. A plain class attribute where the class is one kernel."""

    @abstractmethod
    def signature(self) -> Signature:
        """The arguments by name, in the order of the entry's parameters."""

    @abstractmethod
    def launch(self) -> LaunchConfig:
        """The launch geometry, which is said here and nowhere else."""

    @abstractmethod
    def emit(self, k: KernelBuilder) -> None:
        """Write the body."""

    @abstractmethod
    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        """What every `out` and `inout` argument must hold afterwards, computed in NumPy with float64 inside. Of a kernel of
        several ranks this, `inputs` and `tolerance` are about all ranks at once: every array has one more dimension in front,
        every scalar is an array, both of as many as there are ranks."""

    @abstractmethod
    def work(self) -> Work:
        """The least work of one launch."""

    @classmethod
    @abstractmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        """Sample shapes for tests: real model shapes, and the awkward ones (odd N, one block of K, ...). `fixed` holds the
        fields that the registered name fixes (see registry.py)."""

    @abstractmethod
    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """Random arguments for a test: an array for each Array (an `out`, and one of addresses, holds anything), a number for
        each Scalar."""

    @abstractmethod
    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        """The largest |result - reference| allowed, for each `out` and `inout`; derived where it is written, 0 where exact."""

    @property
    def activation_digits(self) -> int:
        """How many activation digits (ptxgen/kernels/quantize) it multiplies a matrix by; 0 if it takes f32 activations."""
        return 0

    @property
    def activation_halves(self) -> HalfForm | None:
        """The form of the activation halves (ptxgen/kernels/quantize) that it multiplies a matrix by; None if it reads none."""
        return None

    def batched(self, m: int) -> tuple[KernelType, ...]:
        """The kernels that do for m rows what this one does for one, the likeliest first: which one it is may depend
        on what the rows share. Raises ArgumentError for an m that is too large."""
        return ()

    def with_residual(self) -> KernelType | None:
        """The kernel that adds its result to `y` in place, with the bits of this one and residual_add, if there is one."""
        return None

    def with_norm(self) -> KernelType | None:
        """The kernel that multiplies the digits of an RMSNorm that is not complete, which it completes itself, with the bits of
        rmsnorm_digits and this one, if there is one: see HwDp4aType.normed."""
        return None

    def in_parts(self, parts: int) -> KernelType | None:
        """The kernel that takes the digits of a row from so many ranks, each of which has made a part of them and sends it to
        the others (HwDp4aType.row_parts), with the bits of this one, if there is one."""
        return None

    def sent(self, ranks: int) -> KernelType | None:
        """The kernel of one of so many ranks that sends the digits of its part of a row to the others, for kernels that take it
        `in_parts`, with the bits of this one, if there is one."""
        return None

    def with_residual_norm(self, digits: int) -> KernelType | None:
        """The kernel that adds its result to `y` in place and leaves what an RMSNorm of y needs: the digits of gamma * y, of
        which its field `out_digits` says how many, as `y_digits`, `y_scales` and `y_sums`, and `squares`, for kernels
        `with_norm`; if there is one. The bits are those of `with_residual` and rmsnorm_digits."""
        return None

    def gated(self, up: KernelType, digits: int) -> KernelType | None:
        """The kernel that multiplies by its matrix and by that of `up`, and gives silu of the one times the other, and its
        digits (`y_digits`, `y_scales`, `y_sums`), if there is one. The bits are those of both kernels and
        fused_swiglu_digits."""
        return None

    def with_weight_ring(self) -> KernelType | None:
        """The kernel whose weights are copied ahead into shared memory, from before it waits for the launch before it on, with
        the bits of this one, if there is one that is faster on a large GPU. A block may take RING_SHARED bytes."""
        return None

    def between(self, before: KernelType | None, behind: KernelType | None) -> KernelType:
        """This one as it is fastest between these launches, with the same bits; None: one that is not known."""
        return self

    @property
    def borrowed(self) -> Mapping[str, str]:
        """Its arguments that are constant ones of the launch behind it, by the names that they have there, as `between` gives
        them to it."""
        return {}

    def early(self) -> KernelType:
        """The kernel that does part of its work before it waits for the launch before it (LaunchConfig.early), with the bits of
        this one. This one itself if it has none to do: then it waits before all else (`build`)."""
        return self

    def joined(self, others: Sequence[KernelType]) -> KernelType | None:
        """The kernel that multiplies the same activations by the matrices of these kernels, too, in one launch, if there is
        one that takes no longer: their `w` and `y` are its w2 and y2, w3 and y3. It may add in another order than they do."""
        return None

    def accuracy(self, rng: np.random.Generator) -> Mapping[str, float]:
        """What the kernel's own approximations cost, measured in NumPy: by situation (`normal activations`, `one channel at 26
        x rms`), the root mean square error relative to that of the reference without them. Empty where there are none.
        `ptxgen explain` prints it."""
        return {}

    def parameters(self) -> dict[str, Any]:
        """The shape as a dictionary, for manifests and messages."""
        from dataclasses import fields

        return {f.name: getattr(self, f.name) for f in fields(self) if f.init and f.metadata.get("shown", True)}

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.parameters().items())})"


HIDDEN = {"shown": False}
"""Metadata of a field that a registered name fixes (a format, a style) and users do not set: `field(metadata=HIDDEN)`."""
