"""What a kernel is with more work, or beside others: for several rows, with an epilogue, with another source. Each function
gives the composition, or None where there is none. Rules of a step (executor/layers) ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, TypeGuard

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.launch_config import PIPELINE_SHARED
from ptxgen.dsl.parts import with_parameters
from ptxgen.kernels.activation.bias import BiasAdd
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.kernels.collective.gather_planes import GatherPlanes
from ptxgen.kernels.gemm.stationary_gemm import StationaryGemm
from ptxgen.kernels.gemm.suited import OF_ALL
from ptxgen.kernels.gemv import suited
from ptxgen.kernels.gemv.chunks import takes_parts
from ptxgen.kernels.gemv.gemv_type import GemvType
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.leave_norm import LeaveNorm
from ptxgen.kernels.gemv.matrices import Fused, FusedWithAnother, GateAndUp
from ptxgen.kernels.gemv.mwv import MwvGemv, rows_by_mwv
from ptxgen.kernels.gemv.planes import Planes
from ptxgen.kernels.gemv.residual import AddResidual
from ptxgen.kernels.gemv.send_planes import SendPlanes
from ptxgen.kernels.gemv.shared_planes import chunks
from ptxgen.kernels.gemv.suited import NO_PIPELINE, PipelineForm
from ptxgen.kernels.gemv.swiglu import GATED
from ptxgen.kernels.gemv.tokens import Batch
from ptxgen.kernels.norm.per_head_rmsnorm import PerHeadRmsNorm
from ptxgen.kernels.quantize.quantize import Quantize
from ptxgen.kernels.segments import further
from ptxgen.target import HOPPER, WARP_SIZE, Target

ALIKE: Final = ("format", "k", "digits", "normed", "row_parts")
"""The fields in which matrices must be alike to be multiplied in one launch."""


def _elementwise(kernel: AddInPlace, m: int) -> tuple[KernelType, ...]:
    """A bias is a delta that all tokens share."""
    return (replace(kernel, m=m), BiasAdd(kernel.n, m))


def _heads(kernel: PerHeadRmsNorm, m: int) -> tuple[KernelType, ...]:
    """It does not ask whose heads they are."""
    return (replace(kernel, heads=kernel.heads * m),)


def _blocks(kernel: Quantize, m: int) -> tuple[KernelType, ...]:
    return (replace(kernel, rows=kernel.rows * m),)


def _batch(kernel: HwDp4aGemv, m: int) -> tuple[KernelType, ...]:
    """The kernel of m tokens, with settings of its own."""
    if not kernel.is_plain or kernel.normed:
        return ()
    return (HwDp4aGemv(kernel.format, k=kernel.k, n=kernel.n, digits=kernel.digits, tokens=Batch(m), **Batch.defaults),)


FOR_ROWS: Final[dict[type, Callable[[Any, int], tuple[KernelType, ...]]]] = {
    AddInPlace: _elementwise,
    PerHeadRmsNorm: _heads,
    Quantize: _blocks,
    HwDp4aGemv: _batch,
    MwvGemv: rows_by_mwv,
    GemvType: rows_by_mwv,
}
"""The forms for m tokens of types whose form is not the kernel with another `m`; of those that inherit from them, without a
field `m`, too."""


def for_rows(kernel: KernelType, m: int) -> tuple[KernelType, ...]:
    """The kernels that do for m tokens what this one does for one, in priority order: which one it is may depend on what the
    tokens share. A kernel with a field `m` that is None or 1 by default is, with that field set, the one for m tokens, unless
    FOR_ROWS names its type; one for several has none. ArgumentError for an m that is too large."""
    alone = next((one.default for one in fields(kernel) if one.name == "m"), None)
    if getattr(kernel, "m", None) != alone or alone not in (None, 1):
        return ()
    if hasattr(kernel, "m") and type(kernel) not in FOR_ROWS:
        return (replace(kernel, m=m),)  # type: ignore[call-arg]
    own = next((FOR_ROWS[base] for base in type(kernel).__mro__ if base in FOR_ROWS), None)
    return own(kernel, m) if own is not None else ()


def add_residual(kernel: KernelType) -> KernelType | None:
    """With the epilogue that adds the product to `y` in place: the bits of this kernel and residual_add. A kernel with a field
    `residual` has it if that is set."""
    if isinstance(kernel, HwDp4aGemv):
        return replace(kernel, epilogue=(AddResidual(),)) if kernel.is_plain else None
    residual = getattr(kernel, "residual", None)
    return replace(kernel, residual=True) if residual is False else None  # type: ignore[call-arg]


def complete_norm(kernel: KernelType) -> KernelType | None:
    """With the source that completes a deferred RMSNorm: the bits of rmsnorm_digits and this kernel."""
    return replace(kernel, normed=True) if isinstance(kernel, HwDp4aGemv) else None


def receive_parts(kernel: KernelType, parts: int) -> KernelType | None:
    """With the source that takes a row's int8 planes from so many ranks, each of which has made a part: the bits of this
    one."""
    if not isinstance(kernel, HwDp4aGemv) or not all(takes_parts(blocks, parts) for blocks in kernel.blocks):
        return None
    return replace(kernel, row_parts=parts)


def send_part(kernel: KernelType, ranks: int) -> KernelType | None:
    """With the epilogue that sends the int8 planes of its part of a row to the other ranks."""
    if not isinstance(kernel, HwDp4aGemv) or not _makes_swiglu(kernel) or kernel.sends is not None:
        return None
    *chain, last = kernel.epilogue
    assert isinstance(last, Planes)
    return replace(kernel, epilogue=(*chain, SendPlanes(last.out_digits, ranks)))


def defer_norm(kernel: KernelType, digits: int) -> KernelType | None:
    """With the epilogues that add the product to `y` in place and leave what an RMSNorm of y needs: int8 planes of gamma * y
    and the squares, for kernels that `complete_norm`. The bits are those of `add_residual` and rmsnorm_digits."""
    if not isinstance(kernel, HwDp4aGemv) or not kernel.is_plain:
        return None
    settings = suited.leaving_norm(kernel.blocks[0])
    return None if settings is None else replace(kernel, **settings, epilogue=(AddResidual(), LeaveNorm(digits)))


def fuse_swiglu(kernel: KernelType, up: KernelType, digits: int, activation: str = "silu") -> KernelType | None:
    """The kernel that multiplies by its matrix and by that of `up`, and writes activation(the one) times the other and the int8
    planes of that. The bits are those of both kernels and fused_swiglu_digits with this activation."""
    if not _is_plain(kernel) or not _is_plain(up):
        return None
    alike = all(getattr(up, name) == getattr(kernel, name) for name in (*ALIKE, "n"))
    settings = suited.swiglu(kernel.blocks[0]) if alike else None
    if settings is None:
        return None
    return replace(kernel, **settings, segments=GateAndUp(), epilogue=(GATED[activation](), Planes(digits)))


def fuse_horizontally(kernel: KernelType, others: Sequence[KernelType]) -> KernelType | None:
    """The kernel that multiplies the same activations by the matrices of these kernels, too, in one launch that takes no
    longer: their `w` and `y` are its w2 and y2, w3 and y3. A GEMV on int8 planes has the settings of the first; the last of
    three matrices may have another format."""
    if not isinstance(kernel, HwDp4aGemv):
        of_all = OF_ALL.get(type(kernel))
        return None if of_all is None else of_all(kernel, others)
    if not kernel.is_plain:
        return None

    def alike(one: KernelType, names: Sequence[str] = ALIKE) -> TypeGuard[HwDp4aGemv]:
        return _is_plain(one) and all(getattr(one, name) == getattr(kernel, name) for name in names)

    more = further(others, alike)
    if more is not None:
        fewest = min((n for n in more if n), default=kernel.n)
        row_groups = kernel.row_groups if fewest >= kernel.blocks[0].warp_results else 1
        return replace(kernel, **{**NO_PIPELINE, "row_groups": row_groups}, segments=Fused(*more))
    if len(others) != 2:
        return None
    same, other = others
    if not (alike(same) and alike(other, [name for name in ALIKE if name != "format"])):
        return None
    return _with_another(kernel, same, other)


def _with_another(kernel: HwDp4aGemv, same: HwDp4aGemv, other: HwDp4aGemv) -> HwDp4aGemv | None:
    """Three matrices, the last of another format: in one group where a matrix has too few rows for more. None where activations
    do not fit shared memory at once, and where the GPU would have the blocks in too many rounds."""
    if any(len(chunks(one.format, one.k, 1, one.digits)) > 1 for one in (kernel, other)):
        return None
    last_rows = suited.last_rows_per_warp(other.rows_per_warp, other.format)
    last_results = last_rows * other.fragments.lane_groups * kernel.row_groups
    fit = same.n >= kernel.blocks[0].warp_results and last_results <= min(other.n, WARP_SIZE)
    segments = FusedWithAnother(same.n, other.n, last_rows)
    row_groups = kernel.row_groups if fit else 1
    mixed = replace(kernel, **{**NO_PIPELINE, "row_groups": row_groups}, last=other.format, segments=segments)
    launch = mixed.launch()
    return mixed if suited.mixes(launch.blocks, launch.threads) else None


def pipeline_weights(kernel: KernelType) -> KernelType | None:
    """With the multistage pipeline that copies weights into shared memory, from before the wait for the launch before it, where
    that is faster on a large GPU. A block may take PIPELINE_SHARED bytes. Same bits."""
    if not isinstance(kernel, HwDp4aGemv):
        return None
    if isinstance(kernel.segments, Fused):
        return _pipelined_of_several(kernel)
    form: PipelineForm | None = None
    if _makes_swiglu(kernel):
        form = suited.pipeline_of_swiglu(kernel.blocks[0])
    elif any(isinstance(one, LeaveNorm) for one in kernel.epilogue):
        form = suited.pipeline_of_leaving_norm(kernel.rows_per_warp)
    elif kernel.epilogue and kernel.epilogue[0].onto:
        form = suited.pipeline_of_residual(kernel.blocks[0])
    return None if form is None else _with_stages(kernel, form)


def _pipelined_of_several(kernel: HwDp4aGemv) -> HwDp4aGemv | None:
    weight_bytes = sum(matrix.n for matrix in kernel.matrices) * kernel.format.row_bytes(kernel.k)
    for rounds, form in suited.pipelines_of_several(weight_bytes, mixed=isinstance(kernel.segments, FusedWithAnother)):
        one = with_parameters(kernel, **form.settings)
        if not suited.in_rounds(one.launch().blocks, rounds, one.blocks[0]):
            continue
        pipelined = _with_stages(one, form._replace(settings={}))
        if pipelined is not None and pipelined.launch().resident * pipelined.launch().dynamic_shared <= PIPELINE_SHARED:
            return pipelined
    return None


def _with_stages(kernel: HwDp4aGemv, form: PipelineForm) -> HwDp4aGemv | None:
    """With a pipeline of as many stages as fit; None where there is no room for so many."""
    one = with_parameters(kernel, **form.settings)
    fitting = (count for count in range(form.most, form.least - 1, -1) if all(it.fits_stages(count) for it in one.blocks))
    count = next(fitting, None)
    return None if count is None else replace(one, **{**NO_PIPELINE, "stages": count}, pdl=False)


def between(kernel: KernelType, before: KernelType | None, after: KernelType | None) -> KernelType:
    """As it is fastest between these launches, with the same bits; None: one that is not known."""
    if not (isinstance(kernel, HwDp4aGemv) and kernel.stages):
        return kernel
    beside = isinstance(after, GatherPlanes) or (isinstance(after, HwDp4aGemv) and after.stages > 0)
    kernel = replace(kernel, holds_next=kernel.launch().dynamic_shared > suited.HOLDING and not beside)
    leaves = any(isinstance(one, LeaveNorm) for one in kernel.epilogue)
    if not (leaves and isinstance(after, HwDp4aGemv) and _makes_swiglu(after)) or after.stages:
        return kernel
    if (after.format, after.k) != (kernel.format, kernel.n):
        return kernel
    return with_parameters(kernel, **suited.prefetches(after.blocks[0]))


def borrowed(kernel: KernelType) -> Mapping[str, str]:
    """The arguments that are constant ones of the launch after it, by the names that they have there, as `between` sets."""
    found: dict[str, str] = {}
    if isinstance(kernel, HwDp4aGemv):
        for one in kernel.epilogue:
            found |= one.borrowed if isinstance(one, LeaveNorm) else {}
    return found


def as_dependent(kernel: KernelType, target: Target = HOPPER) -> KernelType:
    """The form that works before it waits for the launch before it (LaunchConfig.dependent), with the same bits, for blocks of
    this target; the kernel itself where it has none: then it waits first."""
    if isinstance(kernel, StationaryGemm):
        return replace(kernel, **kernel.dependent_form, room=min(kernel.room, target.max_shared))
    return replace(kernel, **kernel.dependent_form) if kernel.dependent_form else kernel


def _is_plain(kernel: KernelType) -> TypeGuard[HwDp4aGemv]:
    return isinstance(kernel, HwDp4aGemv) and kernel.is_plain


def _makes_swiglu(kernel: HwDp4aGemv) -> bool:
    return isinstance(kernel.segments, GateAndUp)
