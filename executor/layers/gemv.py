"""Matrix times vector for any weight type: which GEMV kernel a weight gets, and its launch on f32 activations or on their
digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.choice.choice import Choice, GpuProfile
from executor.launch.launch import require_apart
from executor.memory.buffers import GpuBuffer
from executor.memory.weights import Weight
from ptxgen.dsl.kernel_type import Argument, Array, KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import Format
from ptxgen.kernels.gemv.digit_gemv_type import DigitGemvType
from ptxgen.kernels.registry import find, known

if TYPE_CHECKING:
    from executor.layers.calls import Launch
    from executor.layers.indexed import Projection


def gemv_kernel(weight: Weight, profile: GpuProfile, *, accurate: bool = False) -> Choice:
    """The kernel that multiplies this weight by a vector, and why. `accurate`: one of the accurate precision. Raises
    ArgumentError if the profile names a kernel that reads another format or takes other arguments."""
    choice = profile.choose(weight.format, weight.k, weight.n, accurate=accurate)
    require_fit(choice.kernel, weight.format, weight.k, weight.n, weight.name)
    return choice


def project(launch: Launch, operation: str, projection: Projection, *, x: GpuBuffer, y: GpuBuffer) -> None:
    """y = W x; x: f32[k], y: f32[n], in memory of its own. A kernel on digits shares them with all that read the same x."""
    kernel = projection.kernel
    require_apart(f"{operation} by {kernel}", {"input": x}, {"output": y})  # also where the kernel reads digits instead of x
    activations = launch.digits.of(launch, operation, x, kernel.digits) if isinstance(kernel, DigitGemvType) else {"x": x}
    launch(operation, kernel, y=y, w=projection.weight.buffer, **activations)


def project_onto(
    launch: Launch, operation: str, projection: Projection, *, x: GpuBuffer, stream: GpuBuffer, product: GpuBuffer
) -> None:
    """stream += W x, all f32; `product`, f32[n], is where W x goes if the two steps are two launches, `OPERATION` and
    `OPERATION_residual`."""
    kernel = projection.kernel
    entry = known(f"{kernel.name}_residual") if launch.fused else None
    if entry is not None and isinstance(kernel, DigitGemvType):
        activations = launch.digits.of(launch, operation, x, kernel.digits)
        launch(operation, entry.make(**kernel.parameters()), y=stream, w=projection.weight.buffer, **activations)
        return
    project(launch, operation, projection, x=x, y=product)
    launch(f"{operation}_residual", find("residual_add").make(n=projection.weight.n), x=stream, delta=product)


def digits_read(*readers: Projection) -> int:
    """How many digits of their common input these projections read; 0 if none reads digits, or not all of those that do read
    as many."""
    counts = {one.kernel.digits for one in readers if isinstance(one.kernel, DigitGemvType)}
    return counts.pop() if len(counts) == 1 else 0


def require_fit(kernel: KernelType, format: Format, k: int, n: int, name: str) -> None:
    """ArgumentError unless the kernel multiplies n rows of k weights of this format by a vector; `name` says whose they are.

    Sizes do not tell formats apart (a row of Q4_0 and of Q4_K often has as many bytes), so a kernel that says its format must
    say this one."""
    own = getattr(kernel, "format", format)
    if own != format:
        raise ArgumentError(f"{kernel} is for {own}; the profile names it for {format}, the format of {name}")
    if isinstance(kernel, DigitGemvType):  # `project` gives it digits
        plain = find(f"dp4a_{format.id}_gemv").make(k=k, n=n, digits=kernel.digits)
    else:
        plain = find(f"{format.id}_gemv").make(k=k, n=n)
    given, needed = _facts(kernel), _facts(plain)
    if given != needed:
        raise ArgumentError(f"{kernel} cannot multiply {name}: it takes {given}, the executor gives {needed}")


def _facts(kernel: KernelType) -> str:
    return ", ".join(_fact(name, argument) for name, argument in sorted(kernel.signature().items()))


def _fact(name: str, argument: Argument) -> str:
    return f"{name}: {argument}" + (f" ({argument.direction})" if isinstance(argument, Array) else "")
