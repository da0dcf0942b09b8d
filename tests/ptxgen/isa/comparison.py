"""How a GPU's results of a probe may differ from the emulator's: not at all, save where PTX leaves bits open or only bounds
an error."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.types import BY_NAME
from tests.ptxgen.isa import fragments, probe
from tests.ptxgen.isa.running import numbers

Array = NDArray[Any]

# (relative, absolute) error of approximations, by builder name and type: the bound in the PTX ISA plus one ulp for the
# emulator's own rounding; an ulp of a subnormal is absolute. Large arguments of sin and cos have no bound and are left out.
_F32 = 2.0**-23
_SUBNORMAL = 2.0**-149
BOUNDS: dict[tuple[str, str], tuple[float, float]] = {
    ("div_approx", "f32"): (3 * _F32, 3 * _SUBNORMAL),
    ("div_full", "f32"): (3 * _F32, 3 * _SUBNORMAL),
    ("rcp_approx", "f32"): (2 * _F32, 2 * _SUBNORMAL),
    ("sqrt_approx", "f32"): (2 * _F32, 0.0),
    ("rsqrt_approx", "f32"): (3 * _F32, 0.0),
    ("rsqrt_approx", "f64"): (2.0**-20, 0.0),
    ("rcp_approx_ftz", "f64"): (2.0**-19, 0.0),
    ("rsqrt_approx_ftz", "f64"): (2.0**-19, 0.0),
    ("sin_approx", "f32"): (_F32, 2.0**-20.5),
    ("cos_approx", "f32"): (_F32, 2.0**-20.5),
    ("lg2_approx", "f32"): (2.0**-22 + _F32, 2.0**-22),
    ("ex2_approx", "f32"): (3 * _F32, 2.0**-126),
    ("tanh_approx", "f32"): (2.0**-10.9, 0.0),
    ("ex2_approx", "f16"): (2.0**-9.9 + 2.0**-11, 2.0**-24),
    ("tanh_approx", "f16"): (2.0**-10, 2.0**-10.9),
    ("ex2_approx", "bf16"): (2.0**-7 + 2.0**-8, 2.0**-126),
    ("tanh_approx", "bf16"): (2.0**-7, 2.0**-8),
}


def first_difference(one: probe.Probe, records: Array, want: Array, got: Array) -> str:
    """Where two output records, uint8[count, bytes], disagree, in words; empty if they agree."""
    for place in one.outputs:
        a, b = numbers(want, place), numbers(got, place)
        wrong = np.argwhere(~_agree(one, records, place, a, b))
        if len(wrong):
            lane, element = (int(i) for i in wrong[0])
            operands = [[hex(int(x)) for x in numbers(records, f)[lane]] for f in one.inputs]
            return (
                f"{one.instruction} in lane {lane}: {int(a[lane, element]):#x} on the emulator, {int(b[lane, element]):#x} on "
                f"the GPU, operands {operands}; {len(wrong)} of {a.size} differ"
            )
    return ""


def _agree(one: probe.Probe, records: Array, place: probe.Field, a: Array, b: Array) -> Array:
    equal: Array = a == b
    name = one.row.name
    scalar = place.type.name.removesuffix("x2") if place.type.is_float else ""
    if name == "mma" and fragments.kinds(one)[0] != "s32":
        kind = fragments.kinds(one)[0]
        x, y = (_floats(v, kind).reshape(*a.shape, -1) for v in (a, b))
        allowed = fragments.tolerances(one, records).reshape(x.shape)
        return (np.abs(x - y) <= allowed).all(axis=-1)  # type: ignore[no-any-return]
    if not scalar:
        return equal
    x, y = (_floats(v, scalar).reshape(*a.shape, -1) for v in (a, b))
    both_nan = np.isnan(x) & np.isnan(y)
    bound = BOUNDS.get((name, scalar))
    if bound is not None:
        near = both_nan | (x == y) | _near(x, y, *bound)
        if name in ("sin_approx", "cos_approx"):
            near |= ~(np.abs(_floats(numbers(records, one.inputs[0]), scalar)) <= 6.3).reshape(near.shape)
        return near.all(axis=-1)  # type: ignore[no-any-return]
    # PTX fixes the NaN of no f64 operation: which operand's it is depends on the order that the assembler gives them.
    return equal | both_nan.all(axis=-1) if scalar == "f64" else equal


def _near(x: Array, y: Array, relative: float, absolute: float) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.abs(x - y) <= np.abs(x) * relative + absolute  # type: ignore[no-any-return]


def _floats(bits: Array, type: str) -> Array:
    """Bit patterns as float64; a 32-bit word of halves gives two."""
    with np.errstate(invalid="ignore"):
        if type == "bf16":
            halves = np.ascontiguousarray(bits).view(np.uint16)
            return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return np.ascontiguousarray(bits).view(np.dtype(f"f{BY_NAME[type].bytes}")).astype(np.float64)
