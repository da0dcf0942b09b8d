"""A weight matrix bound to the kernel that multiplies it by a vector, or by several, and what a kernel must be to do that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from executor.choice.choice import GpuProfile, reads_one_digit
from executor.layers.batched import takes_rows
from executor.memory.buffers import GpuBuffer
from executor.memory.weights import LoadedWeight
from ptxgen.dsl.arguments import Argument, Array, Signature
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.parts import usual_parameters, with_parameters
from ptxgen.errors import ArgumentError
from ptxgen.formats import Format
from ptxgen.kernels.gemv.gemv_type import gemv_arguments

PLAIN: Final = GpuProfile(rules=frozenset())
"""No rule: a launch for each operation."""


@dataclass(frozen=True)
class Projection:
    """A weight matrix, u8[n, row bytes] in its format, bound to the kernel that multiplies it by a vector, or by so many at
    once. `reason`: why this kernel. profile: its rules say what its product may be one launch with. Of a matrix that ranks
    share, the kernel is that of the whole, by which all is decided that bits depend on; `own` is launched. scale: f32[1], by
    which the product is multiplied, as NVFP4 files have it."""

    weight: LoadedWeight
    kernel: KernelType
    reason: str
    profile: GpuProfile = PLAIN
    scale: GpuBuffer | None = None

    @property
    def pointer(self) -> int:
        """The address of the first block."""
        return self.weight.buffer.pointer

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.weight.nbytes

    @property
    def type(self) -> str:
        """The GGML type."""
        return self.weight.format.name

    def allows(self, rule: str) -> bool:
        """Whether its product may take part in this rule."""
        return self.profile.allows(rule)

    def own(self, kernel: KernelType) -> KernelType:
        """A kernel of the whole matrix as the one of the rows that this device has of it; the same order of summation."""
        return kernel if self.weight.ranks == 1 else of_rank(kernel, self.weight.ranks)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, k): rows, and values of a row."""
        return self.weight.n, self.weight.k


def bind(weight: LoadedWeight, profile: GpuProfile, *, accurate: bool = False, rows: int = 1) -> Projection:
    """The weight with the profile's kernel for it and so many rows of activations, as GpuProfile.choose; `accurate`: one of the
    accurate precision whatever the profile's is. Raises ArgumentError if the profile names a kernel that reads another format
    or takes other arguments."""
    choice = profile.choose(weight.format, weight.k, weight.rows, accurate=accurate, rows=rows)
    require_fit(choice.kernel, weight.format, weight.name, n=weight.rows, k=weight.k, rows=rows)
    return Projection(weight, choice.kernel, choice.reason, profile)


def bind_rows(projection: Projection, profile: GpuProfile, rows: int) -> Projection:
    """The projection with what was measured, or is expected, to be fastest for several rows of activations; as it is where that
    takes them a few at a time. Where it does not read a single int8 plane, what is chosen instead does not, either. Errors as
    bind."""
    weight, accurate = projection.weight, not reads_one_digit(projection.kernel)
    choice = profile.choose(weight.format, weight.k, weight.rows, accurate=accurate, rows=rows)
    measured = choice.entry is not None and choice.entry.rows > 1
    if not measured and not takes_rows(choice.kernel, rows):
        return projection
    return bind(weight, profile, accurate=accurate, rows=rows)


def of_rank(kernel: KernelType, ranks: int) -> KernelType:
    """A kernel that multiplies by one matrix or several, for as many rows of each as one of `ranks` devices has. What is of the
    whole's shape alone (KernelType.of_shape) is as by default."""
    rows = {name: value // ranks for name in ("n", "n2", "n3") if (value := kernel.parameters().get(name))}
    usual = {name: value for name, value in usual_parameters(kernel).items() if name in kernel.of_shape}
    return with_parameters(kernel, **rows, **usual)


def require_fit(kernel: KernelType, format: Format, name: str, *, n: int, k: int, rows: int = 1) -> None:
    """ArgumentError unless the kernel multiplies n rows of k weights of this format by a vector, or by so many rows of
    activations at once; `name` says whose weights they are.

    Sizes do not tell formats apart (a row of Q4_0 and of Q4_K often has as many bytes), so a kernel that says its format must
    say this one."""
    own = getattr(kernel, "format", format)
    if own != format:
        raise ArgumentError(f"{kernel} is for {own}; the profile names it for {format}, the format of {name}")
    batch = (rows,) if rows > 1 and takes_rows(kernel, rows) else ()
    given = gemv_arguments(format, k, n, batch, digits=kernel.activation_planes, halves=kernel.activation_f16_split)
    taken = _facts({name: argument for name, argument in kernel.signature().items() if name not in kernel.scratch})
    passed = _facts(given)
    if taken != passed:
        raise ArgumentError(f"{kernel} cannot multiply {name}: it takes {taken}, the executor gives {passed}")


def _facts(arguments: Signature) -> str:
    return ", ".join(_fact(name, argument) for name, argument in sorted(arguments.items()))


def _fact(name: str, argument: Argument) -> str:
    return f"{name}: {argument}" + (f" ({argument.direction})" if isinstance(argument, Array) else "")
