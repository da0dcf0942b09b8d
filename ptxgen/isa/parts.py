"""What several families of rows share: lists of types and rounding modes, and the pieces of meaning behind `.ftz`, `.sat`,
`.relu` and the packed types. No rows here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ptxgen.isa.algebra import Algebra, Number
from ptxgen.types import BY_NAME, F16, F64, DType

UNSIGNED = ("u16", "u32", "u64")
SIGNED = ("s16", "s32", "s64")
INTEGERS = (*UNSIGNED, *SIGNED)
BITS = ("b16", "b32", "b64")
ROUNDINGS = ("rn", "rz", "rm", "rp")
INTEGER_ROUNDINGS = ("rni", "rzi", "rmi", "rpi")
RN = {"rnd": "rn"}
FTZ = ("ftz",)
SAT = ("sat",)
RELU = ("relu",)
SCOPES = ("cta", "cluster", "gpu", "sys")
CLUSTER_SCOPE = {"scope=cluster": (90, (7, 8))}


def state_space(word: str) -> str:
    """The state space of a `.ss` modifier: `shared` of `shared::cta`, `generic` of none."""
    return word.partition("::")[0] or "generic"


def dtype(name: str) -> DType:
    """The type of this name."""
    return BY_NAME[name]


def saturate(v: Algebra, a: Number, sat: str) -> Number:
    """`.sat`: clamped to [0, 1], NaN to 0."""
    if not sat:
        return a
    return v.min(v.max(a, v.const(0.0, a.type)), v.const(1.0, a.type))


def rectify(v: Algebra, a: Number, relu: str) -> Number:
    """`.relu`: a negative number becomes 0, a NaN the canonical one."""
    if not relu:
        return a
    return v.select(v.isnan(a), v.canonical(a), v.max(a, v.const(0.0, a.type)))


def float_op(
    v: Algebra, work: Callable[..., Number], *operands: Number, rnd: str = "rn", ftz: str = "", sat: str = "", relu: str = ""
) -> Number:
    """An operation of f32 or f16 under its modifiers: operands and result flushed, rounded, clamped; NaN canonical. `work` must
    take values of any float type."""
    if ftz:
        operands = tuple(v.flush(a) for a in operands)
    d = work(*operands) if rnd == "rn" else v.rounded(rnd, work, *operands)
    if ftz:
        d = flushed_result(v, d, rnd, work, *(v.convert(a, F64) for a in operands))
    if sat:
        return saturate(v, d, sat)
    return rectify(v, d, relu) if relu else v.canonical(d)


def flushed_result(v: Algebra, d: Number, rnd: str, work: Callable[..., Number], *operands: Number) -> Number:
    """The result d of an operation with `.ftz`: zero where it is below the least normal number after it was rounded to the bits
    of a normal number (as H200s have it), be it an ordinary number after rounding to the bits of a subnormal one. `work`
    gives the result from the f64 `operands`; it is moved up, out of the subnormal numbers, and rounded there."""
    least, up = (2.0**-14, 2.0**10) if d.type == F16 else (2.0**-126, 2.0**64)
    normal = v.rounded(rnd, lambda *wide: v.convert(work(*wide) * up, d.type), *operands)
    return v.select(v.abs(normal) < least * up, d * 0.0, d)


def by_half(v: Algebra, type: str, work: Callable[..., Number], *operands: Number) -> Number:
    """`work` on both halves of packed operands (f16x2, bf16x2), or on scalars as they are."""
    whole = dtype(type)
    if whole.lanes == 1:
        return work(*operands)
    halves = [v.lanes_of(a) for a in operands]
    return v.join(work(*(h[0] for h in halves)), work(*(h[1] for h in halves)), whole)


def one_type(modifiers: Mapping[str, str]) -> str:
    """The rule of products whose a and b must be of one type."""
    a, b = modifiers.get("a_type"), modifiers.get("b_type")
    return "" if a == b else f"a and b are of one type, not {a} and {b}"


def together(*rules: Callable[[Mapping[str, str]], str]) -> Callable[[Mapping[str, str]], str]:
    """The first complaint of several rules."""
    return lambda modifiers: next((text for rule in rules if (text := rule(modifiers))), "")
