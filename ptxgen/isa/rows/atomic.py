"""Atomic operations on memory: `atom` (returns what was there) and `red` (does not), PTX ISA 9.7.13.5 and 9.7.13.6."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect
from ptxgen.isa.opcode import modifiers
from ptxgen.isa.operand_spec import state_space
from ptxgen.isa.operands import Address
from ptxgen.isa.parts import CLUSTER_SCOPE, SCOPES, by_half, dtype
from ptxgen.isa.units import by_space

SPACES = ("global", "shared", "shared::cta")
ORDERS = ("relaxed", "acquire", "release", "acq_rel")
NEEDS: dict[str, table.Need] = {
    "space=shared::cta": (75, (7, 8)),
    "type=bf16": (90, (7, 8)),
    "type=bf16x2": (90, (7, 8)),
    **CLUSTER_SCOPE,
}
TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64"),
}
ALL_TYPES = ("u32", "s32", "u64", "s64", "b32", "b64", "f32", "f64")
instruction = partial(table.instruction, effect=Effect.ATOMIC, unit=by_space, needs=NEEDS)


def _known(modifiers: Mapping[str, str]) -> str:
    allowed = TYPES[modifiers["op"]]
    if modifiers["type"] in allowed:
        return ""
    return f"atomic {modifiers['op']} is for {', '.join(allowed)}, not {modifiers['type']}"


def _update(v: Algebra, op: str) -> Callable[[Number, Number], Number]:
    def increment(old: Number, b: Number) -> Number:
        return v.select(old >= b, v.const(0, old.type), old + 1)

    def decrement(old: Number, b: Number) -> Number:
        return v.select((old == 0) | (old > b), b, old - 1)

    return {
        "add": lambda old, b: old + b,
        "min": v.min,
        "max": v.max,
        "inc": increment,
        "dec": decrement,
        "and": lambda old, b: old & b,
        "or": lambda old, b: old | b,
        "xor": lambda old, b: old ^ b,
        "exch": lambda old, b: b,
    }[op]


def _apply(v: Algebra, space: str, a: Address, b: Number, op: str, type: str) -> Number:
    if op == "add" and type == "f32":
        return _add_f32(v, state_space(space), a, b)
    return v.atomic(state_space(space), a, dtype(type), _update(v, op), b)


def _add_f32(v: Algebra, space: str, a: Address, b: Number) -> Number:
    """The units of global memory flush subnormals, those of shared memory keep them."""

    def keep(old: Number, b: Number) -> Number:
        return v.canonical(old + b)

    def flush(old: Number, b: Number) -> Number:
        return v.canonical(v.flush(v.flush(old) + v.flush(b)))

    if space != "generic":
        return v.atomic(space, a, b.type, keep if space == "shared" else flush, b)
    shared = v.is_space("shared", v.address_of(a))
    return v.atomic(space, a, b.type, lambda old, b, shared: v.select(shared, keep(old, b), flush(old, b)), b, shared)


@instruction("atom.{order?}.{scope?}.{space?}.{op}.{type}", d="{type}", a="addr", b="{type}", rule=_known, section="9.7.13.5")
@modifiers(order=ORDERS, scope=SCOPES, space=SPACES, op=tuple(TYPES), type=ALL_TYPES)
def atom(v: Algebra, a: Address, b: Number, op: str, type: str, order: str = "", scope: str = "", space: str = "") -> Number:
    """Memory becomes `memory op b` in one step; d is what was there."""
    return _apply(v, space, a, b, op, type)


@instruction("red.{order?}.{scope?}.{space?}.{op}.{type}", a="addr", b="{type}", rule=_known, section="9.7.13.6")
@modifiers(
    order=("relaxed", "release"), scope=SCOPES, space=SPACES, op=tuple(op for op in TYPES if op != "exch"), type=ALL_TYPES
)
def red(v: Algebra, a: Address, b: Number, op: str, type: str, order: str = "", scope: str = "", space: str = "") -> None:
    """Memory becomes `memory op b` in one step."""
    _apply(v, space, a, b, op, type)


@instruction("atom.{order?}.{scope?}.{space?}.cas.{type}", d="{type}", a="addr", b="{type}", c="{type}", section="9.7.13.5")
@modifiers(order=ORDERS, scope=SCOPES, space=SPACES, type=("b16", "b32", "b64"))
def atom_cas(
    v: Algebra, a: Address, b: Number, c: Number, type: str, order: str = "", scope: str = "", space: str = ""
) -> Number:
    """Memory becomes c if it holds b, in one step; d is what was there."""
    return v.atomic(state_space(space), a, dtype(type), lambda old, b, c: v.select(old == b, c, old), b, c)


def _add_half(v: Algebra, space: str, a: Address, b: Number, type: str) -> Number:
    def update(old: Number, b: Number) -> Number:
        return by_half(v, type, lambda x, y: v.canonical(x + y), old, b)

    return v.atomic(state_space(space), a, dtype(type), update, b)


@instruction("atom.{order?}.{scope?}.{space?}.add.noftz.{type}", d="{type}", a="addr", b="{type}", section="9.7.13.5")
@modifiers(order=ORDERS, scope=SCOPES, space=SPACES, type=("f16", "f16x2", "bf16", "bf16x2"))
def atom_add_half(v: Algebra, a: Address, b: Number, type: str, order: str = "", scope: str = "", space: str = "") -> Number:
    """Memory becomes `memory + b`, each half in one step; d is what was there."""
    return _add_half(v, space, a, b, type)


@instruction("red.{order?}.{scope?}.{space?}.add.noftz.{type}", a="addr", b="{type}", section="9.7.13.6")
@modifiers(order=("relaxed", "release"), scope=SCOPES, space=SPACES, type=("f16", "f16x2", "bf16", "bf16x2"))
def red_add_half(v: Algebra, a: Address, b: Number, type: str, order: str = "", scope: str = "", space: str = "") -> None:
    """Memory becomes `memory + b`, each half in one step."""
    _add_half(v, space, a, b, type)
