"""The contract of a kernel: one frozen dataclass that says everything about it, so that the executor, the tests, the
golden files, the docs and the profiler need nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ptxgen.dsl.arguments import (
    Argument,
    Array,
    Direction,
    Scalar,
    Signature,
    addresses,
    is_whole,
    read,
    update,
    write,
)
from ptxgen.dsl.launch_config import DEPENDENT_SM, PIPELINE_SHARED, LaunchConfig
from ptxgen.dsl.parts import shown_part_parameters
from ptxgen.errors import ArgumentError
from ptxgen.target import ALL, DEFAULT, FIRST_PTX, Target

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ptxgen.dsl.builder import KernelBuilder

# The kernels of users import the names of arguments.py and launch_config.py from here, too.
__all__ = [
    "DEPENDENT_SM", "HIDDEN", "MOST_CODE", "PIPELINE_SHARED", "Argument", "Array", "Direction", "HalfForm", "KernelType",
    "LaunchConfig", "Scalar", "Signature", "Work", "addresses", "is_whole", "read", "update", "write",
]  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What one launch has to do at least: floating-point or integer operations, and bytes read plus bytes written."""

    flops: int
    bytes: int


@dataclass(frozen=True)
class HalfForm:
    """In which form a kernel for f16 tensor cores reads activations (ptxgen/kernels/quantize/f16_split.py). parts: how
    many f16 stand for a value, 1 or 2; lane_run: how many values in a row, 64 or 4, belong to one lane of a quad.
    ArgumentError for others."""

    parts: int
    lane_run: int

    def __post_init__(self) -> None:
        for name, allowed in (("parts", (1, 2)), ("lane_run", (4, 64))):
            value = getattr(self, name)
            if not is_whole(value) or value not in allowed:
                raise ArgumentError(f"an f16 split of activations has {name} {allowed[0]} or {allowed[1]}, got {value!r}")


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
    """Whether `emit` says, by `k.wait_for_launch_before()`, where the kernel has to wait: in its dependent form it does the
    rest first. Others wait before all else."""
    frees_next_inside: ClassVar[bool] = False
    """Whether `emit` says, by `k.let_next_launch_start()`, from where on its dependent form lets the next launch start. Others
    let it at once."""
    dependent_form: ClassVar[Mapping[str, Any]] = {}
    """The fields of its form for programmatic dependent launch, which works before it waits for the launch before it
    (LaunchConfig.dependent), with the same bits. Empty where it waits before all else, or where `waits_inside` says."""
    most_code: ClassVar[int] = MOST_CODE
    """Bytes of machine code that it may have."""
    batched_alike: ClassVar[bool] = True
    """Whether a row has the bits that this kernel gives it in the forms of compose.for_rows, too."""

    @property
    def scratch(self) -> tuple[str, ...]:
        """The arrays that only launches of this kernel read or write, one after another."""
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

    def fits(self, gpu: Target) -> bool:
        """Whether this GPU runs it, and its launch asks for no more shared memory than a block has there."""
        return self.runs_on(gpu) and self.launch().dynamic_shared <= gpu.max_shared

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
    def activation_planes(self) -> int:
        """How many int8 planes of activations (ptxgen/kernels/quantize) it multiplies a matrix by; 0 if it takes f32
        activations."""
        return 0

    @property
    def activation_f16_split(self) -> HalfForm | None:
        """The form of the f16 split of activations (ptxgen/kernels/quantize) that it multiplies a matrix by; None if it reads
        none."""
        return None

    def accuracy(self, rng: np.random.Generator) -> Mapping[str, float]:
        """What the kernel's own approximations cost, measured in NumPy: by situation (`normal activations`, `one channel at 26
        x rms`), the root mean square error relative to that of the reference without them. Empty where there are none.
        `ptxgen explain` prints it."""
        return {}

    def parameters(self) -> dict[str, Any]:
        """The shape as a dictionary, for manifests and messages: without fields that are None by default and left so, which
        are of other names of the class."""
        shown = [f for f in fields(self) if f.init and f.metadata.get("shown", True)]
        own = {f.name: getattr(self, f.name) for f in shown if f.default is not None or getattr(self, f.name) is not None}
        return own | shown_part_parameters(self)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.parameters().items())})"


HIDDEN = {"shown": False}
"""Metadata of a field that a registered name fixes (a format, a style) and users do not set: `field(metadata=HIDDEN)`."""
