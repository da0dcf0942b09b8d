"""Warp-level matrix instructions with register fragments: ldmatrix, stmatrix and mma.sync (PTX ISA 9.7.14.5)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect, LaneResult
from ptxgen.isa.opcode import modifiers, operands
from ptxgen.isa.operand_spec import state_space, wide
from ptxgen.isa.operands import Address
from ptxgen.isa.parts import dtype, one_type
from ptxgen.isa.rows.integer import clamp
from ptxgen.isa.units import Unit
from ptxgen.target import WARP_SIZE
from ptxgen.types import B16, B32, F16, F16X2, F32, S32, U32

instruction = partial(table.instruction, effect=Effect.NONE, unit=Unit.TENSOR, lanes=LaneResult.MIXED)

LANES = range(WARP_SIZE)
NUMS = ("x1", "x2", "x4")
SPACES = ("shared", "shared::cta")
SPACE_NEEDS: dict[str, table.Need] = {"space=shared::cta": (75, (7, 8))}


@instruction(
    "ldmatrix.sync.aligned.m8n8.{num}.{trans?}.{space?}.b16",
    ptx=(6, 5),
    needs=SPACE_NEEDS,
    effect=Effect.LOAD,
    unit=Unit.SHARED,
    section="9.7.14.5.15",
)
@modifiers(num=NUMS, trans=("trans",), space=SPACES)
@operands(d="b32[num]", a="shared addr")
def ldmatrix(v: Algebra, a: Address, num: str, trans: str = "", space: str = "") -> tuple[Number, ...]:
    """Load 8x8 matrices of 16-bit elements; lane 8 m + r gives the address of row r of matrix m. Lane l gets elements
    2 (l mod 4) and the next of row l / 4 (of column l / 4 with `trans`)."""
    rows = v.address_of(a)
    where = state_space(space)
    words = []
    for matrix in range(int(num[1:])):
        if not trans:
            row = v.from_lane(rows, [8 * matrix + lane // 4 for lane in LANES])
            words.append(v.load(where, row + v.convert((v.lane() & 3) << 2, row.type), B32)[0])
            continue
        halves = []
        for i in range(2):
            row = v.from_lane(rows, [8 * matrix + 2 * (lane % 4) + i for lane in LANES])
            halves.append(v.load(where, row + v.convert((v.lane() >> 2) << 1, row.type), B16)[0])
        words.append(v.join(halves[0], halves[1], B32))
    return tuple(words)


@instruction(
    "stmatrix.sync.aligned.m8n8.{num}.{trans?}.{space?}.b16",
    sm=90,
    ptx=(7, 8),
    effect=Effect.STORE,
    unit=Unit.SHARED,
    section="9.7.14.5.16",
)
@modifiers(num=NUMS, trans=("trans",), space=SPACES)
@operands(a="shared addr", b="b32[num]")
def stmatrix(v: Algebra, a: Address, b: tuple[Number, ...], num: str, trans: str = "", space: str = "") -> None:
    """The inverse of ldmatrix."""
    rows = v.address_of(a)
    where = state_space(space)
    for matrix, word in enumerate(b):
        if not trans:
            row = v.from_lane(rows, [8 * matrix + lane // 4 for lane in LANES])
            v.store(where, row + v.convert((v.lane() & 3) << 2, row.type), (word,), B32)
            continue
        for i, half in enumerate(v.lanes_of(word)):
            row = v.from_lane(rows, [8 * matrix + 2 * (lane % 4) + i for lane in LANES])
            v.store(where, row + v.convert((v.lane() >> 2) << 1, row.type), (half,), B16)


def _elements(v: Algebra, word: Number, type: str) -> list[Number]:
    """The elements of a fragment register, lowest first, as f32 or s32."""
    if type in ("f16", "bf16"):
        return [v.convert(half, F32) for half in v.lanes_of(v.bits(word, dtype(f"{type}x2")))]
    if type == "tf32":
        return [v.bits(v.bits(word, U32) & 0xFFFFE000, F32)]
    return [v.bits(v.byte(word, i, U32 if type == "u8" else S32), S32) for i in range(4)]


def _multiply(
    v: Algebra, a: Sequence[Number], b: Sequence[Number], c: Sequence[Number], a_type: str, b_type: str, *, satfinite: str = ""
) -> list[Number]:
    """The four elements of d that a lane l holds: rows l / 4 and l / 4 + 8, columns 2 (l mod 4) and the next. Register 2 g of a
    holds row l / 4, register 2 g + 1 row l / 4 + 8, register g of b column l / 4; within them k runs over 4 lanes, then g."""
    d = list(c)
    for group, column in enumerate(b):
        for k in range(4):
            rows = [v.from_lane(a[2 * group + i], [(lane & ~3) + k for lane in LANES]) for i in range(2)]
            columns = [v.from_lane(column, [4 * (2 * (lane & 3) + j) + k for lane in LANES]) for j in range(2)]
            for i in range(2):
                for j in range(2):
                    left, right = _elements(v, rows[i], a_type), _elements(v, columns[j], b_type)
                    for x, y in zip(left, right, strict=True):
                        d[2 * i + j] = v.fma(x, y, d[2 * i + j]) if x.type == F32 else d[2 * i + j] + x * y
    if satfinite:
        return _saturated(v, a, b, c, a_type, b_type)
    return d


def _saturated(
    v: Algebra, a: Sequence[Number], b: Sequence[Number], c: Sequence[Number], a_type: str, b_type: str
) -> list[Number]:
    """The integer product clamped to s32: the products alone cannot overflow, so the sum is taken in 64 bits."""
    zero = [v.const(0, S32)] * 4
    products = _multiply(v, a, b, zero, a_type, b_type)
    return [clamp(v, v.convert(p, wide(S32)) + v.convert(x, wide(S32)), S32) for p, x in zip(products, c, strict=True)]


mma = partial(instruction, name="mma", section="9.7.14.5.14")
AMPERE: table.Need = (80, (7, 0))
HALVES = ("f16", "bf16")
float_row = partial(mma, d="f32[4]", rule=one_type)
half_row = partial(mma, d="b32:f16[2]", a_type=("f16",), b_type=("f16",))
byte_row = partial(mma, satfinite=("satfinite",), a_type=("u8", "s8"), b_type=("u8", "s8"), d="s32[4]", sm=80, ptx=(7, 0))


@float_row("mma.sync.aligned.m16n8k16.row.col.f32.{a_type}.{b_type}.f32", a_type=HALVES, b_type=HALVES, sm=80, ptx=(7, 0))
@operands(a="b32:{a_type}[4]", b="b32:{b_type}[2]", c="f32[4]")
@float_row("mma.sync.aligned.m16n8k8.row.col.f32.{a_type}.{b_type}.f32", ptx=(6, 5), needs={"a_type=bf16": AMPERE})
@modifiers(a_type=HALVES, b_type=HALVES)
@operands(a="b32:{a_type}[2]", b="b32:{b_type}[1]", c="f32[4]")
@float_row("mma.sync.aligned.m16n8k8.row.col.f32.{a_type}.{b_type}.f32", a_type=("tf32",), b_type=("tf32",), sm=80, ptx=(7, 0))
@operands(a="b32:{a_type}[4]", b="b32:{b_type}[2]", c="f32[4]")
@float_row("mma.sync.aligned.m16n8k4.row.col.f32.{a_type}.{b_type}.f32", a_type=("tf32",), b_type=("tf32",), sm=80, ptx=(7, 0))
@operands(a="b32:{a_type}[2]", b="b32:{b_type}[1]", c="f32[4]")
def mma_f32(
    v: Algebra, a: tuple[Number, ...], b: tuple[Number, ...], c: tuple[Number, ...], a_type: str, b_type: str
) -> tuple[Number, ...]:
    """d = a b + c over the warp, summed in f32 in the order of k; a GPU sums in another (tests/ptxgen/isa/fragments.py)."""
    return tuple(v.canonical(x) for x in _multiply(v, a, b, c, a_type, b_type))


@half_row("mma.sync.aligned.m16n8k16.row.col.f16.{a_type}.{b_type}.f16", sm=80, ptx=(7, 0))
@operands(a="b32:{a_type}[4]", b="b32:{b_type}[2]", c="b32:f16[2]")
@half_row("mma.sync.aligned.m16n8k8.row.col.f16.{a_type}.{b_type}.f16", ptx=(6, 5))
@operands(a="b32:{a_type}[2]", b="b32:{b_type}[1]", c="b32:f16[2]")
def mma_f16(
    v: Algebra, a: tuple[Number, ...], b: tuple[Number, ...], c: tuple[Number, ...], a_type: str, b_type: str
) -> tuple[Number, ...]:
    """d = a b + c over the warp, summed in f32 and rounded to f16 once."""
    start = [v.convert(half, F32) for word in c for half in v.lanes_of(v.bits(word, F16X2))]
    d = [v.canonical(v.convert(x, F16)) for x in _multiply(v, a, b, start, a_type, b_type)]
    return tuple(v.bits(v.join(d[i], d[i + 1], F16X2), B32) for i in (0, 2))


@byte_row("mma.sync.aligned.m16n8k32.row.col.{satfinite?}.s32.{a_type}.{b_type}.s32")
@operands(a="b32:{a_type}[4]", b="b32:{b_type}[2]", c="s32[4]")
@byte_row("mma.sync.aligned.m16n8k16.row.col.{satfinite?}.s32.{a_type}.{b_type}.s32")
@operands(a="b32:{a_type}[2]", b="b32:{b_type}[1]", c="s32[4]")
def mma_s32(
    v: Algebra,
    a: tuple[Number, ...],
    b: tuple[Number, ...],
    c: tuple[Number, ...],
    a_type: str,
    b_type: str,
    satfinite: str = "",
) -> tuple[Number, ...]:
    """d = a b + c over the warp, exact, wrapping or clamped with `satfinite`."""
    return tuple(_multiply(v, a, b, c, a_type, b_type, satfinite=satfinite))
