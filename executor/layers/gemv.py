"""Matrix times vector, or times each of several rows, for any weight type: the launches of its kernel on f32 activations, their
digits or their halves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import Any, Final, NamedTuple

from executor.base.errors import LaunchError
from executor.launch.checks import require_apart
from executor.layers.batched import gemv_of_rows, takes_rows, tiles
from executor.layers.calls import LaunchQueue, scratch_of
from executor.layers.gather import messages
from executor.layers.packed import Form, form_of
from executor.layers.projection import Projection
from executor.layers.rows import enqueue_rows, shaped
from executor.memory.buffers import GpuBuffer
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.kernels.quantize.activation_digits import BLOCK

MOST_SENDING: Final = 2
"""Devices that send digits to the products which read them. The words of more take registers that there are not: of down of an
8B on 4 and 8 the assembler spills 88 and 220 bytes."""


def project(launch: LaunchQueue, operation: str, projection: Projection, *, x: GpuBuffer, y: GpuBuffer) -> None:
    """y = x W^T; x: f32[k] and y: f32[n], or f32[m, k] and f32[m, n], in memory of its own. Several rows go in tiles of 8, each
    of which reads the weights once, unless the kernel takes all m at once. Digits and halves are shared by all kernels
    that read them of the same x. Raises ArgumentError for several rows and a kernel that has no form for them."""
    kernel = projection.kernel
    require_apart(f"{operation} by {kernel}", {"input": x}, {"output": y})  # also where the kernel does not read x itself
    kernel, read = _reading(launch, operation, kernel, x)
    of_rows = {"y": y, **read}
    m = rows(x)
    if m == 1 or takes_rows(kernel, m):
        kernel = _ringed(projection, projection.own(kernel), m)
        own = scratch_of(launch, operation, kernel)
        launch(operation, kernel, w=projection.weight.buffer, **shaped(kernel, **of_rows), **own)
        return
    for tile, starts in tiles(m):
        form = projection.own(gemv_of_rows(kernel, tile))
        for start in starts:
            parts = {name: _tile(buffer, m, start, tile) for name, buffer in of_rows.items()}
            launch(operation, form, w=projection.weight.buffer, **shaped(form, **parts))


class Product(NamedTuple):
    """A matrix by the name of its operation, and where its product goes, f32[n] or f32[m, n]."""

    operation: str
    projection: Projection
    y: GpuBuffer


def project_all(launch: LaunchQueue, *products: Product, x: GpuBuffer) -> None:
    """As `project` for each; where `launch.fused`, those whose kernels can be joined in one launch, `FIRST+SECOND`: of a vector
    if the projections say that they may."""
    left = list(products)
    while left:
        first = left.pop(0)
        m = rows(x)
        together = launch.fused and (first.projection.fusions.joined if m == 1 else takes_rows(first.projection.kernel, m))
        kernel, others = _joined(first, left) if together else (None, ())
        if kernel is None:
            project(launch, first.operation, first.projection, x=x, y=first.y)
        else:
            _project_joined(launch, kernel, (first, *others), x)
        left = [one for one in left if one not in others]


def _joined(first: Product, left: Sequence[Product]) -> tuple[KernelType | None, Sequence[Product]]:
    """The kernel for this product and as many others as can be joined to it, and these: two may be worth it where one is not.
    None and nobody if there are none."""
    for count in range(len(left), 0, -1):
        for others in combinations(left, count):
            kernel = first.projection.kernel.joined([one.projection.kernel for one in others])
            if kernel is not None:
                return first.projection.own(kernel), others
    return None, ()


def _project_joined(launch: LaunchQueue, kernel: KernelType, group: Sequence[Product], x: GpuBuffer) -> None:
    operation = "+".join(one.operation for one in group)
    require_apart(f"{operation} by {kernel}", {"input": x}, {f"output of {one.operation}": one.y for one in group})
    kernel, read = _reading(launch, operation, kernel, x)
    kernel = _ringed(group[0].projection, kernel, rows(x))
    arguments = dict(read)
    for number, one in enumerate(group, 1):
        own = {"w": one.projection.weight.buffer, "y": one.y}
        arguments |= {name if number == 1 else f"{name}{number}": buffer for name, buffer in own.items()}
    launch(operation, kernel, **shaped(kernel, **arguments), **scratch_of(launch, operation, kernel))


def project_onto(
    launch: LaunchQueue, operation: str, projection: Projection, *, x: GpuBuffer, stream: GpuBuffer, product: GpuBuffer
) -> None:
    """stream += x W^T, all f32; `product`, as large as the stream, is where x W^T goes if the two steps are two launches,
    `OPERATION` and `OPERATION_residual`."""
    kernel, m = projection.kernel, rows(x)
    fused = kernel.with_residual() if launch.fused and (m == 1 or takes_rows(kernel, m)) else None
    if fused is not None:
        fused = projection.own(fused)
        fused, read = _reading(launch, operation, fused, x)
        fused = _ringed(projection, fused, m)
        own = scratch_of(launch, operation, fused)
        launch(operation, fused, w=projection.weight.buffer, **shaped(fused, y=stream, **read), **own)
        return
    project(launch, operation, projection, x=x, y=product)
    enqueue_rows(launch, f"{operation}_residual", AddInPlace(n=projection.weight.n), m, x=stream, delta=product)


def project_gated(
    launch: LaunchQueue, gate: Projection, up: Projection, digits: int, *, x: GpuBuffer, y: GpuBuffer,
    whole: GpuBuffer | None = None,
) -> bool:  # fmt: skip
    """y = silu(x Wg^T) * (x Wu^T) for one row and the digits of y, by one launch, where there is a kernel for it. whole: of
    this y is a rank's part, and the launch sends its digits to the other ranks, for who receives them. Whether there was one:
    nothing is launched if not."""
    if not (launch.fused and gate.fusions.gated and rows(x) == 1):
        return False
    kernel = gate.own(gate.kernel).gated(up.own(up.kernel), digits)
    if kernel is None:
        return False
    operation = "ffn_gate+ffn_up+ffn_swiglu"
    require_apart(f"{operation} by {kernel}", {"input": x}, {"output": y})
    workspace = launch.packed.workspace
    if whole is not None and kernel.sent(workspace.device.ranks) is None:
        return False
    kernel, read = _reading(launch, operation, kernel, x)
    kernel = _ringed(gate, kernel, 1)
    sending: Mapping[str, Any] = {}
    received: Mapping[str, Any] = {}
    if whole is not None:
        sends = kernel.sent(workspace.device.ranks)
        assert sends is not None  # a ring changes no kernel's type
        kernel = sends
        sending, received = messages(workspace, kernel, "y_")
    given = {
        "w": gate.weight.buffer,
        "w2": up.weight.buffer,
        **shaped(kernel, y=y, **read),
        **sending,
        **scratch_of(launch, operation, kernel),
    }
    launch.packed.write(launch, operation, kernel, y if whole is None else whole, digits, received, **given)
    return True


class NextNorm(NamedTuple):
    """The norm that comes behind a product on the residual stream, and who multiplies it. by_many: blocks, so many that each of
    them should find it whole, and not receive it."""

    gamma: GpuBuffer
    readers: Sequence[Projection]
    by_many: bool = False

    @property
    def left_as(self) -> int | None:
        """How many digits of it the product may leave, for its readers to complete; None if one of them cannot."""
        kernels = [one.kernel for one in self.readers]
        forms = {form_of(kernel) for kernel in kernels}
        able = all(kernel.with_norm() is not None for kernel in kernels)
        (form, *others) = forms
        return form if able and not others and isinstance(form, int) else None


def project_onto_and_leave_norm(
    launch: LaunchQueue, operation: str, projection: Projection, norm: NextNorm, eps: float, *,
    x: GpuBuffer, stream: GpuBuffer, normed: GpuBuffer,
) -> bool:  # fmt: skip
    """As `project_onto` of one row where one launch can do that and leave the norm of the stream, which `normed` counts as for
    its readers, but is not written. Whether there was one: nothing is launched if not."""
    digits = norm.left_as
    if not (launch.fused and projection.fusions.normed and rows(x) == 1 and digits is not None):
        return False
    kernel = projection.kernel.with_residual_norm(digits)
    if kernel is None:
        return False
    kernel, read = _reading(launch, operation, kernel, x)
    kernel = _ringed(projection, kernel, 1)
    given = {"w": projection.weight.buffer, **shaped(kernel, **read), **scratch_of(launch, operation, kernel)}
    launch.packed.leave_norm(launch, operation, kernel, x=stream, normed=normed, gamma=norm.gamma, eps=eps, **given)
    return True


def rows(x: GpuBuffer) -> int:
    """How many vectors a buffer has, f32[k] or f32[m, k]."""
    return prod(x.shape[:-1])


def _ringed(projection: Projection, kernel: KernelType, m: int) -> KernelType:
    """The kernel, of so many rows, with a ring of weights where the projection may have one and there is one."""
    return _with_ring(kernel) if m == 1 and projection.fusions.ringed else kernel


@lru_cache(maxsize=256)
def _with_ring(kernel: KernelType) -> KernelType:
    """The one with a ring if there is one: found once, since layers have the same kernels and looking takes milliseconds."""
    return kernel.with_weight_ring() or kernel


def _tile(buffer: GpuBuffer, m: int, start: int, tile: int) -> GpuBuffer:
    """Some rows of a buffer of m."""
    return buffer.view(start * buffer.nbytes // m, (tile, *buffer.shape[1:]))


def _reading(
    launch: LaunchQueue, operation: str, kernel: KernelType, x: GpuBuffer
) -> tuple[KernelType, Mapping[str, Any]]:  # fmt: skip
    """The kernel, which completes x where that is a norm that was left to its readers; and what stands for x for it.
    LaunchError if it cannot complete it, or not receive what is sent."""
    form = form_of(kernel)
    if form is None:
        return kernel, {"x": x}
    read = launch.packed.of(launch, operation, x, form)
    completing = kernel.with_norm() if "squares" in read else kernel
    if completing is None:
        raise LaunchError(f"{operation}: {kernel} cannot complete the norm that was left to it; launch that norm by itself")
    if "inbox" not in read:
        return completing, read
    receiving = completing.in_parts(launch.packed.workspace.device.ranks)
    if receiving is None:
        raise LaunchError(f"{operation}: {kernel} cannot receive the parts that were sent to it; gather them")
    return receiving, read


def form_read(*readers: Projection) -> Form | None:
    """What the first of these projections that does not read f32 reads of their common input: whoever computes that may write
    it, too. None if all read f32."""
    forms = (form_of(one.kernel) for one in readers)
    return next((form for form in forms if form is not None), None)


def gathers_digits(launch: LaunchQueue, projection: Projection, own: GpuBuffer) -> bool:
    """Whether ranks may gather digits of what the projection reads or has made, of which each has `own`, f32[n] or f32[rows,
    n]: those of a single row, whose blocks are of one rank each. NCCL gathers values: it makes nothing of them on the way."""
    device = launch.packed.workspace.device
    if device.gathers.by_nccl(own.nbytes * device.ranks):
        return False
    return launch.fused and projection.fusions.gathered and rows(own) == 1 and own.size % BLOCK == 0


def receive_parts(launch: LaunchQueue, *readers: Projection) -> bool:
    """Whether all who read a row may wait for the digits of its parts themselves, and can, by whatever kernels they are
    launched; and so few devices do. It was measured to be faster on two, with rings."""
    first, *others = readers
    kernels = [reader.own(reader.kernel) for reader in readers]
    joined = first.kernel.joined([other.kernel for other in others]) if others else None
    made = [
        None if joined is None else first.own(joined),
        kernels[0].gated(kernels[1], 1) if len(kernels) == 2 else None,
        None if others else kernels[0].with_residual(),
    ]
    kernels += [kernel for kernel in made if kernel is not None]
    ranks = launch.packed.workspace.device.ranks
    may = ranks <= MOST_SENDING and all(reader.fusions.sent for reader in readers)
    return may and _take_parts(tuple(kernels), ranks)


@lru_cache(maxsize=256)
def _take_parts(kernels: tuple[KernelType, ...], ranks: int) -> bool:
    """Found once, since layers have the same kernels."""
    return all(kernel.in_parts(ranks) is not None for kernel in kernels)


def digits_gathered(launch: LaunchQueue, reader: Projection, own: GpuBuffer) -> int | None:
    """As how many digits ranks gather what the projection reads; None for values."""
    form = form_read(reader)
    return form if isinstance(form, int) and gathers_digits(launch, reader, own) else None
