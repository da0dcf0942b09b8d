"""The oracles of the rows that work on bits: logic, shifts, fields, permutations, counts, sums of byte products."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.types import BY_NAME
from tests.ptxgen.isa.oracles import Modifiers, number, oracle, signed


@oracle("and")
def _and(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    return (a & b,)


@oracle("or")
def _or(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    return (a | b,)


@oracle("xor")
def _xor(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    return (a ^ b,)


@oracle("not")
def _not(m: Modifiers, type: str, a: int) -> tuple[int, ...]:
    return (int(not a) if type == "pred" else ~a,)


@oracle("cnot")
def _cnot(m: Modifiers, type: str, a: int) -> tuple[int, ...]:
    return (int(a == 0),)


@oracle("shl")
def _shl(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    return (a << min(b, 64),)


@oracle("shr")
def _shr(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    return (number(a, type) >> min(b, 64),)


@oracle("shf")
def _shf(m: Modifiers, type: str, a: int, b: int, c: int) -> tuple[int, ...]:
    n = min(c, 32) if m["mode"] == "clamp" else c % 32
    both = b << 32 | a
    return (both << n >> 32 if m["direction"] == "l" else both >> n,)


@oracle("lop3")
def _lop3(m: Modifiers, type: str, a: int, b: int, c: int) -> tuple[int, ...]:
    table = int(m["table"])
    return (sum((table >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1) << i for i in range(32)),)


@oracle("bfe")
def _bfe(m: Modifiers, type: str, a: int, b: int, c: int) -> tuple[int, ...]:
    """The pseudo-code of the ISA, bit by bit."""
    bits = BY_NAME[type].bits
    start, length = _bit_count(b, bits), _bit_count(c, bits)
    sign = 0 if type[0] == "u" or length == 0 else a >> min(start + length - 1, bits - 1) & 1
    return (sum((a >> start + i & 1 if i < length and start + i < bits else sign) << i for i in range(bits)),)


@oracle("bfi")
def _bfi(m: Modifiers, type: str, a: int, b: int, c: int, e: int) -> tuple[int, ...]:
    bits = BY_NAME[type].bits
    start, length = _bit_count(c, bits), _bit_count(e, bits)
    taken = range(start, min(start + length, bits))
    return (sum((a >> i - start & 1 if i in taken else b >> i & 1) << i for i in range(bits)),)


def _bit_count(count: int, bits: int) -> int:
    """The low byte in 32 bits; in 64 the whole number, which is all the same from 255 on."""
    return count & 0xFF if bits == 32 else min(count, 0xFF)


@oracle("bfind")
def _bfind(m: Modifiers, type: str, a: int) -> tuple[int, ...]:
    value = number(a, type)
    top = (~value if value < 0 else value).bit_length() - 1
    return (0xFFFFFFFF if top < 0 else BY_NAME[type].bits - 1 - top if "shiftamt" in m else top,)


@oracle("fns")
def _fns(m: Modifiers, type: str, a: int, b: int, c: int) -> tuple[int, ...]:
    count = signed(c, 32)
    if count == 0:
        return (b if a >> b & 1 else 0xFFFFFFFF,)
    places = range(b, 32) if count > 0 else range(b, -1, -1)
    found = [place for place in places if a >> place & 1]
    return (found[abs(count) - 1] if len(found) >= abs(count) else 0xFFFFFFFF,)


def _parts(word: int, count: int, type: str) -> list[int]:
    bits = 32 // count
    parts = [word >> bits * i & (1 << bits) - 1 for i in range(count)]
    return [signed(part, bits) for part in parts] if type == "s32" else parts


VIDEO: dict[str, Callable[[int, int], int]] = {
    "vadd": lambda a, b: a + b, "vsub": lambda a, b: a - b, "vmin": min, "vmax": max, "vabsdiff": lambda a, b: abs(a - b),
    "vavrg": lambda a, b: (a + b + 1) // 2 if a + b >= 0 else (a + b) // 2,
}  # fmt: skip
RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__,
}  # fmt: skip


@oracle(*(f"{name}{count}{add}" for name in (*VIDEO, "vset") for count in (2, 4) for add in ("", ".add")))
def _video(m: Modifiers, type: str, a: int, b: int, c: int) -> tuple[int, ...]:
    count = int(m["which"][-1])
    bits = 32 // count
    work: Callable[[int, int], int] = RELATIONS[m["cmp"]] if "cmp" in m else VIDEO[m["which"][:-1]]
    results = [int(work(x, y)) for x, y in zip(_parts(a, count, m["a_type"]), _parts(b, count, m["b_type"]), strict=True)]
    if m["adds"]:
        return (c + sum(results),)
    if "sat" in m:
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if m["type"] == "s32" else (0, (1 << bits) - 1)
        results = [max(low, min(high, result)) for result in results]
    return (sum((result & (1 << bits) - 1) << bits * i for i, result in enumerate(results)),)


@oracle("popc")
def _popc(m: Modifiers, type: str, a: int) -> tuple[int, ...]:
    return (a.bit_count(),)


@oracle("clz")
def _clz(m: Modifiers, type: str, a: int) -> tuple[int, ...]:
    return (BY_NAME[type].bits - a.bit_length(),)


@oracle("brev")
def _brev(m: Modifiers, type: str, a: int) -> tuple[int, ...]:
    bits = BY_NAME[type].bits
    return (int(f"{a:0{bits}b}"[::-1], 2),)


@oracle("szext")
def _szext(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    width = min(b, 32) if m["mode"] == "clamp" else b % 32
    low = a & (1 << width) - 1
    return (signed(low, width) if type == "s32" and width else low,)


@oracle("bmsk")
def _bmsk(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    start, width = (a % 32, b % 32) if m["mode"] == "wrap" else (min(a, 32), min(b, 32))
    return (((1 << width) - 1) << start,)


@oracle("sad")
def _sad(m: Modifiers, type: str, a: int, b: int, c: int) -> tuple[int, ...]:
    return (c + abs(number(a, type) - number(b, type)),)


@oracle("mul24", "mad24")
def _mul24(m: Modifiers, type: str, a: int, b: int, c: int = 0) -> tuple[int, ...]:
    x, y = (signed(v, 24) if type == "s32" else v & 0xFFFFFF for v in (a, b))
    return ((x * y >> (16 if m["half"] == "hi" else 0)) + c,)


@oracle("dp4a")
def _dp4a(m: Modifiers, type: str, a: int, b: int, c: int) -> tuple[int, ...]:
    left, right = ([_part(x, 8, i, m[f"{name}_type"]) for i in range(4)] for name, x in (("a", a), ("b", b)))
    return (c + sum(x * y for x, y in zip(left, right, strict=True)),)


@oracle("dp2a")
def _dp2a(m: Modifiers, type: str, a: int, b: int, c: int) -> tuple[int, ...]:
    first = 2 if m["half"] == "hi" else 0
    return (c + sum(_part(a, 16, i, m["a_type"]) * _part(b, 8, first + i, m["b_type"]) for i in range(2)),)


def _part(x: int, bits: int, index: int, type: str) -> int:
    part = x >> bits * index & (1 << bits) - 1
    return signed(part, bits) if type == "s32" else part


@oracle("prmt")
def _prmt(m: Modifiers, type: str, a: int, b: int, c: int) -> tuple[int, ...]:
    eight = [(b << 32 | a) >> 8 * i & 0xFF for i in range(8)]
    s = c & 3
    if "mode" in m:
        indices = {
            "f4e": [s, s + 1, s + 2, s + 3], "b4e": [s, (s - 1) % 8, (s - 2) % 8, (s - 3) % 8], "rc8": [s] * 4,
            "ecl": [max(s, 0), max(s, 1), max(s, 2), 3], "ecr": [0, min(s, 1), min(s, 2), min(s, 3)],
            "rc16": [2 * (s & 1), 2 * (s & 1) + 1] * 2,
        }[m["mode"]]  # fmt: skip
        return (sum(eight[index] << 8 * i for i, index in enumerate(indices)),)
    nibbles = [c >> 4 * i & 15 for i in range(4)]
    taken = [eight[n & 7] if n < 8 else 0xFF * (eight[n & 7] >> 7) for n in nibbles]
    return (sum(byte << 8 * i for i, byte in enumerate(taken)),)


@oracle("copysign")
def _copysign(m: Modifiers, type: str, a: int, b: int) -> tuple[int, ...]:
    sign = 1 << BY_NAME[type].bits - 1
    return (a & sign | b & sign - 1,)


@oracle("mov")
def _mov(m: Modifiers, type: str, a: int) -> tuple[int, ...]:
    return (a,)
