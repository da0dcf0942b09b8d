"""What the rows of the table must compute, lane by lane, said a second time with Python integers and fractions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from ptxgen.types import BY_NAME
from tests.ptxgen.isa import exact
from tests.ptxgen.isa.exact import FORMATS, Format, Number

Modifiers = Mapping[str, str]
Oracle = Callable[..., tuple[int, ...]]
"""(modifiers, type name, *operand bits) -> bits of each destination."""

ORACLES: dict[str, Oracle] = {}


def oracle(*names: str) -> Callable[[Oracle], Oracle]:
    """Register for rows of these mnemonics."""

    def add(function: Oracle) -> Oracle:
        ORACLES.update(dict.fromkeys(names, function))
        return function

    return add


def signed(bits: int, width: int) -> int:
    bits &= (1 << width) - 1
    return bits - (1 << width) if bits >> width - 1 else bits


def number(bits: int, type: str) -> int:
    """The integer that the bits of an integer type spell."""
    kind = BY_NAME[type]
    return signed(bits, kind.bits) if kind.is_signed else bits & (1 << kind.bits) - 1


def _float(m: Modifiers, type: str, work: Callable[..., Number], *operands: int) -> int:
    form, ftz, mode = FORMATS[type], "ftz" in m, m.get("rnd", "rn")
    result = work(*(form.decode(bits, ftz=ftz) for bits in operands))
    if "sat" in m:
        return form.encode(_saturated(form.decode(form.encode(result, mode, ftz=ftz))))
    if "relu" in m and not result.is_nan and result.negative:
        return 0
    return form.encode(result, mode, ftz=ftz)


def _saturated(a: Number) -> Number:
    if a.is_nan or a.negative:
        return Number(False, Fraction(0))
    return a if not a.is_infinite and a.fraction < 1 else Number(False, Fraction(1))


def halves(type: str, work: Callable[..., int], *operands: int) -> tuple[int]:
    """`work` on scalars, or on both halves of packed operands; it gets the type of one half."""
    if not type.endswith("x2"):
        return (work(type, *operands),)
    half = type.removesuffix("x2")
    return (work(half, *(x & 0xFFFF for x in operands)) | work(half, *(x >> 16 for x in operands)) << 16,)


def _arithmetic(
    m: Modifiers, type: str, integer: Callable[..., int], real: Callable[..., Number], *operands: int
) -> tuple[int]:
    if BY_NAME[type].is_float:
        return halves(type, lambda half, *bits: _float(m, half, real, *bits), *operands)
    value = integer(*(number(bits, type) for bits in operands))
    if "sat" in m:
        value = max(-(1 << 31), min((1 << 31) - 1, value))
    return (value,)


@oracle("add")
def _add(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    mode = m.get("rnd", "rn")
    return _arithmetic(m, type, lambda a, b: a + b, lambda a, b: exact.add(a, b, mode), a, b)


@oracle("sub")
def _sub(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    mode = m.get("rnd", "rn")
    return _arithmetic(m, type, lambda a, b: a - b, lambda a, b: exact.add(a, exact.negate(b), mode), a, b)


@oracle("mul")
def _mul(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    return _arithmetic(m, type, lambda a, b: a * b, exact.multiply, a, b)


@oracle("mul.hi")
def _mul_hi(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    return (number(a, type) * number(b, type) >> BY_NAME[type].bits,)


@oracle("mul.wide")
def _mul_wide(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    return (number(a, type) * number(b, type),)


@oracle("mad")
def _mad(m: Modifiers, type: str, a: int, b: int, c: int) -> tuple[int, ...]:
    mode = m.get("rnd", "rn")
    return _arithmetic(m, type, lambda a, b, c: a * b + c, lambda a, b, c: exact.fma(a, b, c, mode), a, b, c)


@oracle("mad.hi")
def _mad_hi(m: Modifiers, type: str, a: int, b: int, c: int) -> tuple[int, ...]:
    bits = BY_NAME[type].bits
    return _arithmetic(m, type, lambda a, b, c: (a * b >> bits) + c, exact.fma, a, b, c)


@oracle("mad.wide")
def _mad_wide(m: Modifiers, type: str, a: int, b: int, c: int) -> tuple[int, ...]:
    return (number(a, type) * number(b, type) + c,)


@oracle("fma")
def _fma(m: Modifiers, type: str, a: int, b: int, c: int) -> tuple[int, ...]:
    mode = m.get("rnd", "rn")
    return halves(type, lambda half, *x: _float(m, half, lambda a, b, c: exact.fma(a, b, c, mode), *x), a, b, c)


@oracle("div")
def _div(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    def quotient(a: int, b: int) -> int:
        return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    return _arithmetic(m, type, quotient, exact.divide, a, b)


@oracle("rem")
def _rem(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    x, y = number(a, type), number(b, type)
    return (-1 if y == 0 else abs(x) % abs(y) * (-1 if x < 0 else 1),)


@oracle("rcp")
def _rcp(m: Modifiers, type: str, a: int) -> tuple[int, ...]:
    one = Number(False, Fraction(1))
    return (_float(m, type, lambda a: exact.divide(one, a), a),)


@oracle("sqrt")
def _sqrt(m: Modifiers, type: str, a: int) -> tuple[int, ...]:
    return (_float(m, type, exact.square_root, a),)


@oracle("min", "max")
def _extreme(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    pick = min if m["which"] == "min" else max
    if not BY_NAME[type].is_float:
        value = pick(number(a, type), number(b, type))
        return (max(value, 0) if "relu" in m else value,)

    def one(half: str, a: int, b: int) -> int:
        form = FORMATS[half]
        sign = 1 << form.bits - 1
        negative = (a ^ b) & sign if "xorsign" in m else 0
        if "ftz" in m:
            a, b = (x & sign if form.decode(x, ftz=True).is_zero else x for x in (a, b))
        if "xorsign" in m:
            a, b = a & ~sign, b & ~sign
        x, y = form.decode(a), form.decode(b)
        if (x.is_nan and y.is_nan) or ("nan" in m and (x.is_nan or y.is_nan)):
            return form.canonical_nan
        if x.is_nan or y.is_nan:
            result = b if x.is_nan else a
        else:
            result = pick((x.value, not x.negative, a), (y.value, not y.negative, b))[2]
        return result & ~sign | negative if "xorsign" in m else result

    return halves(type, one, a, b)


@oracle("abs")
def _abs(m: Modifiers, type: str, a: int) -> tuple[int, ...]:
    if not BY_NAME[type].is_float:
        return (abs(number(a, type)),)
    return halves(type, lambda half, a: _with_sign(m, half, a, negative=False), a)


@oracle("neg")
def _neg(m: Modifiers, type: str, a: int) -> tuple[int, ...]:
    if not BY_NAME[type].is_float:
        return (-number(a, type),)
    return halves(type, lambda half, a: _with_sign(m, half, a, negative=not FORMATS[half].decode(a).negative), a)


def _with_sign(m: Modifiers, type: str, bits: int, *, negative: bool) -> int:
    number = FORMATS[type].decode(bits, ftz="ftz" in m)
    return FORMATS[type].encode(Number(negative, number.size))


@oracle("cvt")
def _cvt(m: Modifiers, type: str, a: int, b: int = 0) -> tuple[int, ...]:
    to, of = m["to"], m.get("of", "f32")
    if of in EIGHT_BITS:
        low, high = (_from_eight_bits(m, of, byte) for byte in (a & 0xFF, a >> 8))
        return (low | high << 16,)
    if to in EIGHT_BITS:
        half = of.removesuffix("x2")
        high, low = (a, b) if of == "f32" else (a >> 16, a & 0xFFFF)
        return (_eight_bits(m, to, half, low) | _eight_bits(m, to, half, high) << 8,)
    if to.endswith("x2"):
        (high,), (low,) = (_cvt({**m, "to": to.removesuffix("x2")}, type, x) for x in (a, b))
        return (low | high << 16,)
    target = BY_NAME[to]
    if of in FORMATS:
        source = FORMATS[of].decode(a, ftz="ftz" in m and of == "f32" and to != "f16")
    else:
        value = number(a, of)
        source = Number(value < 0, Fraction(abs(value)))
        if not target.is_float:
            low, high = (
                (number(1 << target.bits - 1, to), (1 << target.bits - 1) - 1)
                if target.is_signed
                else (0, (1 << target.bits) - 1)
            )
            return (max(low, min(high, value)) if "sat" in m else number(value, to),)
    if not target.is_float:
        top = 64 in (target.bits, BY_NAME[of].bits)
        return (exact.to_integer(source, m["rnd"], target.bits, target.is_signed, nan=1 << target.bits - 1 if top else 0),)
    if to == of and "rnd" in m and not source.is_nan and not source.is_infinite:
        whole = exact.to_integer(source, m["rnd"], 2000, True, nan=0)
        source = Number(source.negative, Fraction(abs(whole)))
    if source.is_nan and "sat" not in m:
        return (_converted_nan(m, to, of, a),)
    result = FORMATS[to].encode(source, m.get("rnd", "rn")[:2], ftz="ftz" in m and to == "f32")
    if "relu" in m and not source.is_nan and source.negative:
        return (0,)
    if "sat" in m:
        return (FORMATS[to].encode(_saturated(FORMATS[to].decode(result))),)
    return (result,)


EIGHT_BITS = {"e4m3x2": Format(8, 4, 3), "e5m2x2": Format(8, 5, 2)}


def _of_eight_bits(type: str, code: int) -> Number:
    """e4m3 has no infinities, and two NaN."""
    if type == "e5m2x2":
        return EIGHT_BITS[type].decode(code)
    size = code & 0x7F
    if size == 0x7F:
        return exact.NAN
    fraction, exponent = size & 7, size >> 3
    value = Fraction(fraction | 8 if exponent else fraction) * Fraction(2) ** (max(exponent, 1) - 10)
    return Number(code >> 7 == 1, value)


def _eight_bits(m: Modifiers, to: str, of: str, bits: int) -> int:
    """The code of the nearest finite number, of two the even one."""
    number = FORMATS[of].decode(bits)
    if number.is_nan:
        return 0x7F
    if "relu" in m and number.negative:
        return 0
    numbers = {code: _of_eight_bits(to, code) for code in range(0x80)}
    finite = {code: one.fraction for code, one in numbers.items() if not one.is_nan and not one.is_infinite}
    size = max(finite.values()) if number.is_infinite else abs(number.fraction)
    return min(finite, key=lambda code: (abs(finite[code] - size), code & 1)) | number.negative << 7


def _from_eight_bits(m: Modifiers, of: str, code: int) -> int:
    number = _of_eight_bits(of, code)
    if "relu" in m and not number.is_nan and number.negative:
        return 0
    return FORMATS["f16"].encode(number)


def _converted_nan(m: Modifiers, to: str, of: str, bits: int) -> int:
    """f64: the upper bits, quiet; bf16 to f32 and f32 to itself: the same bits; otherwise the canonical NaN."""
    form = FORMATS[to]
    if of == "f64":
        fraction = (bits & (1 << 52) - 1) >> 52 - form.fraction_bits | 1 << form.fraction_bits - 1
        exponent = (1 << form.exponent_bits) - 1
        return bits >> 63 << form.bits - 1 | exponent << form.fraction_bits | fraction
    if not {"rnd", "ftz"} & m.keys() and (of, to) in (("bf16", "f32"), ("f32", "f32")):
        return bits << form.bits - FORMATS[of].bits
    return form.canonical_nan


@oracle("setp", "set")
def _setp(m: Modifiers, type: str, a: int, b: int, c: int | None = None) -> tuple[int, ...]:
    def one(half: str, a: int, b: int) -> bool:
        if half in FORMATS:
            return exact.compare(m["cmp"], *(FORMATS[half].decode(x, ftz="ftz" in m) for x in (a, b)))
        relation = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(m["cmp"], m["cmp"])
        return exact.RELATIONS[relation](Fraction(number(a, half)), Fraction(number(b, half)))

    def combined(p: bool) -> bool:
        q = bool(c)
        return {"and": p and q, "or": p or q, "xor": p != q, "": p}[m.get("bool", "")]

    if "to" in m and type.removesuffix("x2") in ("f16", "bf16"):
        ones = {"f16": 0x3C00, "bf16": 0x3F80}
        return halves(type, lambda half, a, b: ones[half] if one(half, a, b) else 0, a, b)
    if type.endswith("x2"):
        half = type.removesuffix("x2")
        return (one(half, a & 0xFFFF, b & 0xFFFF), one(half, a >> 16, b >> 16))
    holds = one(type, a, b)
    if "to" in m:
        return ((0x3F800000 if m["to"] == "f32" else 0xFFFFFFFF) if combined(holds) else 0,)
    return (combined(holds), combined(not holds))


@oracle("selp")
def _selp(m: Modifiers, type: str, a: int, b: int, c: int) -> tuple[int, ...]:
    return (a if c else b,)


@oracle("slct")
def _slct(m: Modifiers, type: str, a: int, b: int, c: int) -> tuple[int, ...]:
    if m["of"] == "s32":
        return (a if signed(c, 32) >= 0 else b,)
    x = FORMATS["f32"].decode(c, ftz="ftz" in m)
    return (a if not x.is_nan and x.value >= 0 else b,)
