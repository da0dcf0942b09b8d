"""Asynchronous matrix products of a warpgroup, four warps, on sm_90a: wgmma (PTX ISA 9.7.15), and what goes with it."""

from __future__ import annotations

from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect, LaneResult
from ptxgen.isa.opcode import modifiers, operands
from ptxgen.isa.parts import one_type
from ptxgen.isa.units import Unit

instruction = partial(table.instruction, sm=90, ptx=(8, 0), feature="a", unit=Unit.CONTROL)

WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Columns of a product. The hardware has every multiple of 8 up to 256."""
HALVES = ("f16", "bf16")
SHAPES = tuple(f"m64n{n}k16" for n in WIDTHS)


@instruction("wgmma.fence.sync.aligned", name="wgmma_fence", effect=Effect.PRODUCT_FENCE, section="9.7.15.7.1")
def wgmma_fence(v: Algebra) -> None:
    """Let later products see registers written before: before the first one, and after others than products of the same shape
    wrote accumulators, or read or wrote a."""
    v.product_fence()


@instruction("wgmma.commit_group.sync.aligned", name="wgmma_commit_group", effect=Effect.PRODUCT_GROUP, section="9.7.15.7.2")
def wgmma_commit_group(v: Algebra) -> None:
    """Make a group of the warpgroup's products since the last one."""
    v.commit_products()


@instruction("wgmma.wait_group.sync.aligned", name="wgmma_wait_group", effect=Effect.PRODUCT_WAIT, section="9.7.15.7.3")
@operands(pending="imm")
def wgmma_wait_group(v: Algebra, pending: int) -> None:
    """Wait until at most the last `pending` groups (0 to 7) are still under way."""
    v.wait_products(pending)


@instruction(
    "wgmma.mma_async.sync.aligned.{shape}.f32.{a_type}.{b_type}",
    bounds={"scale_a": (-1, 1), "scale_b": (-1, 1), "trans_b": (0, 1)},
    rule=one_type,
    name="wgmma_mma_async",
    effect=Effect.ASYNC_PRODUCT,
    unit=Unit.TENSOR,
    lanes=LaneResult.MIXED,
    updates="c",
    canonical_nan=True,
    section="9.7.15.5.2",
)
@modifiers(shape=SHAPES, a_type=HALVES, b_type=HALVES)
@operands(c="f32[shape]", a="b32:{a_type}[4]", b="b64:u64", scale_d="pred", scale_a="imm", scale_b="imm", trans_b="imm")
def wgmma_mma_async(
    v: Algebra,
    c: tuple[Number, ...],
    a: tuple[Number, ...],
    b: Number,
    scale_d: Number,
    scale_a: int,
    scale_b: int,
    trans_b: int,
    shape: str,
    a_type: str,
    b_type: str,
) -> tuple[Number, ...]:
    """c = a b + c, or a b where scale_d is false; done when its group was waited for. Warp w has rows 16 w to 16 w + 15 of
    a [64, 16] and c [64, n], in the fragments of mma m16n8k16; b, [n, 16] and K-major, is in shared memory
    (`matrix_descriptor`). scale_a, scale_b: 1, or -1 to negate; trans_b: 0. Summed in f32 in the order of k; a GPU sums in
    another."""
    if trans_b or scale_a not in (1, -1) or scale_b not in (1, -1):
        raise ValueError(f"scales are 1 or -1 and trans_b is 0, got {scale_a}, {scale_b} and {trans_b}")
    return v.product(c, a, b, scale_d, a_type, negative=scale_a != scale_b)


@instruction("fence.proxy.{proxy}", name="fence_proxy", feature="", effect=Effect.PROXY_FENCE, section="9.7.13.4")
@modifiers(proxy=("async", "async.global", "async.shared::cta"))
def fence_proxy(v: Algebra, proxy: str) -> None:
    """Let asynchronous products and bulk copies see what ordinary instructions have written, and overwrite what they have read,
    earlier in causality order: a barrier before it includes other threads' accesses, one after it their products and copies."""
    v.proxy_fence(proxy)


@instruction(
    "setmaxnreg.{action}.sync.aligned.u32", bounds={"count": range(24, 257, 8)}, effect=Effect.NONE, section="9.7.19.5"
)
@modifiers(action=("inc", "dec"))
@operands(count="imm")
def setmaxnreg(v: Algebra, count: int, action: str) -> None:
    """Take more registers a thread, or give some back: `count`, 24 to 256, a multiple of 8, by all four warps."""
    v.no_effect()
