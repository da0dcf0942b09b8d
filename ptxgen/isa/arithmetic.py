"""Integer and floating-point arithmetic: the rows of PTX ISA 9.7.1, 9.7.3, 9.7.4."""

from __future__ import annotations

from ptxgen.isa.algebra import Algebra, Value
from ptxgen.isa.table import instruction

RN = {"rnd": "rn"}
FLOAT_ROUNDINGS = ("rn", "rz", "rm", "rp")
INTEGERS = ("u16", "u32", "u64", "s16", "s32", "s64")


@instruction("add.{type}", type=INTEGERS, d="{type}", a="{type}", b="{type}", section="9.7.1.1")
def add(v: Algebra, a: Value, b: Value, type: str) -> Value:
    """d = a + b, wrapping."""
    return a + b


@instruction("add.{rnd?}.{ftz?}.{sat?}.f32", rnd=FLOAT_ROUNDINGS, ftz=("ftz",), sat=("sat",), d="f32", a="f32", b="f32",
             name="add", defaults=RN, section="9.7.3.3")  # fmt: skip
def add_f32(v: Algebra, a: Value, b: Value, rnd: str = "rn", ftz: str = "", sat: str = "") -> Value:
    """d = a + b, rounded as `rnd` says."""
    if ftz:
        a, b = v.flush(a), v.flush(b)
    d = v.rounded(rnd, lambda a, b: a + b, a, b)
    if ftz:
        d = v.flush(d)
    return v.max(v.const(0.0, d.type), v.min(d, v.const(1.0, d.type))) if sat else d


@instruction("dp4a.{a_type}.{b_type}", a_type=("u32", "s32"), b_type=("u32", "s32"), d="u32|s32", a="b32", b="b32", c="=d",
             sm=61, ptx=(5, 0), section="9.7.1.23")  # fmt: skip
def dp4a(v: Algebra, a: Value, b: Value, c: Value, a_type: str, b_type: str) -> Value:
    """Add the four byte products of a and b to c."""
    from ptxgen.types import BY_NAME

    for i in range(4):
        left, right = v.byte(a, i, BY_NAME[a_type]), v.byte(b, i, BY_NAME[b_type])
        c = c + v.bits(left, c.type) * v.bits(right, c.type)
    return c
