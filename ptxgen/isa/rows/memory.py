"""Loads, stores, prefetches and addresses: rows of PTX ISA 9.7.9 that touch memory or name a state space. Moves between
registers are in move.py, asynchronous copies in async_copy.py, atomics in atomic.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect
from ptxgen.isa.opcode import modifiers, operands
from ptxgen.isa.operand_spec import state_space
from ptxgen.isa.operands import Address
from ptxgen.isa.parts import CLUSTER_SCOPE, SCOPES, dtype, together
from ptxgen.isa.units import Unit, by_space

Data = Number | tuple[Number, ...]
MEMORY_TYPES = ("b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64")
VECTORS = ("v2", "v4", "v8")
L1_EVICTION = tuple(f"L1::{p}" for p in ("evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate"))
PREFETCH_SIZES = ("L2::64B", "L2::128B", "L2::256B")
HINT_NEEDS: dict[str, table.Need] = {
    "evict": (75, (7, 4)),
    "prefetch": (75, (7, 4)),
    "prefetch=L2::256B": (80, (7, 4)),
    "space=shared::cta": (75, (7, 8)),
    "space=param::entry": (75, (8, 3)),
    "space=param::func": (75, (8, 3)),
    "vec=v8": (100, (8, 8)),
    **CLUSTER_SCOPE,
}
load = partial(
    table.instruction, type=MEMORY_TYPES, d="{type}+*", a="addr", effect=Effect.LOAD, unit=by_space, needs=HINT_NEEDS
)
store = partial(
    table.instruction, type=MEMORY_TYPES, a="addr", b="{type}+*", effect=Effect.STORE, unit=by_space, needs=HINT_NEEDS
)


def _vector_fits(modifiers: Mapping[str, str]) -> str:
    """A vector access moves at most 16 bytes, or 32 on global memory of sm_100 and later."""
    length, type = int(modifiers.get("vec", "v1")[1:]), modifiers["type"]
    size = length * dtype(type).bytes
    if length == 8:
        return "" if size == 32 and modifiers.get("space", "global") == "global" else "v8 takes 32-bit types in global memory"
    return "" if size <= 16 else f"{modifiers['vec']} of {type} is {size} bytes; a vector access moves at most 16"


def _one_policy(modifiers: Mapping[str, str]) -> str:
    if "cop" in modifiers and "evict" in modifiers:
        return f"a cache operator ({modifiers['cop']}) and an eviction priority ({modifiers['evict']}) do not go together"
    return ""


def _hints_are_for_global(modifiers: Mapping[str, str]) -> str:
    hints = [name for name in ("evict", "prefetch") if name in modifiers]
    if hints and modifiers.get("space", "global") != "global":
        return f"{' and '.join(modifiers[name] for name in hints)} is for global memory, not {modifiers['space']}"
    return ""


def _volatile_alone(modifiers: Mapping[str, str]) -> str:
    if modifiers.get("order") == "volatile" and ("cop" in modifiers or "evict" in modifiers):
        return "volatile takes no cache operator and no eviction priority"
    return ""


def _load(v: Algebra, space: str, a: Address, type: str, vec: str) -> Any:
    values = v.load(space, a, dtype(type), int(vec[1:]) if vec else 1)
    return values if vec else values[0]


def _store(v: Algebra, space: str, a: Address, b: Data, type: str) -> None:
    v.store(space, a, b if isinstance(b, tuple) else (b,), dtype(type))


@load(
    "ld.{order?}.{space?}.{cop?}.{evict?}.{prefetch?}.{vec?}.{type}",
    order=("weak", "volatile"),
    space=("global",),
    cop=("ca", "cg", "cs", "lu", "cv"),
    evict=L1_EVICTION,
    prefetch=PREFETCH_SIZES,
    vec=VECTORS,
    rule=together(_vector_fits, _one_policy, _volatile_alone),
    section="9.7.9.8",
)
def ld(
    v: Algebra,
    a: Address,
    type: str,
    order: str = "",
    space: str = "",
    cop: str = "",
    evict: str = "",
    prefetch: str = "",
    vec: str = "",
) -> Any:
    """Load from global memory, or from wherever a generic address points."""
    return _load(v, state_space(space), a, type, vec)


@load("ld.{order?}.{space}.{vec?}.{type}", name="ld", rule=_vector_fits, section="9.7.9.8")
@modifiers(order=("weak", "volatile"), space=("shared", "shared::cta"), vec=("v2", "v4"))
@load("ld.{space}.{vec?}.{type}", name="ld", rule=_vector_fits, section="9.7.9.8")
@modifiers(space=("local", "param", "const", "param::entry", "param::func"), vec=("v2", "v4"))
def ld_space(v: Algebra, a: Address, space: str, type: str, order: str = "", vec: str = "") -> Any:
    """Load from the named state space."""
    return _load(v, state_space(space), a, type, vec)


@load(
    "ld.{order}.{scope}.{space?}.{evict?}.{prefetch?}.{vec?}.{type}",
    order=("relaxed", "acquire"),
    scope=SCOPES,
    space=("global", "shared", "shared::cta"),
    evict=L1_EVICTION,
    prefetch=PREFETCH_SIZES,
    vec=("v2", "v4"),
    name="ld",
    rule=together(_vector_fits, _hints_are_for_global),
    section="9.7.9.8",
)
def ld_ordered(
    v: Algebra,
    a: Address,
    order: str,
    scope: str,
    type: str,
    space: str = "",
    evict: str = "",
    prefetch: str = "",
    vec: str = "",
) -> Any:
    """A load that other threads of the scope can synchronise with."""
    return _load(v, state_space(space), a, type, vec)


@load(
    "ld.global.{cop?}.nc.{evict?}.{prefetch?}.{vec?}.{type}",
    effect=Effect.READ_ONLY_LOAD,
    rule=together(_vector_fits, _one_policy),
    section="9.7.9.9",
)
@modifiers(cop=("ca", "cg", "cs"), evict=L1_EVICTION, prefetch=PREFETCH_SIZES, vec=VECTORS)
def ld_nc(v: Algebra, a: Address, type: str, cop: str = "", evict: str = "", prefetch: str = "", vec: str = "") -> Any:
    """Load through the read-only path memory that is not written while the kernel runs."""
    return _load(v, "global", a, type, vec)


@load("ldu.{space?}.{vec?}.{type}", effect=Effect.READ_ONLY_LOAD, rule=_vector_fits, needs={}, section="9.7.9.10")
@modifiers(space=("global",), vec=("v2", "v4"))
def ldu(v: Algebra, a: Address, type: str, space: str = "", vec: str = "") -> Any:
    """Load memory that is not written while the kernel runs, from one address for all threads of the warp."""
    return _load(v, state_space(space), a, type, vec)


@store(
    "st.{order?}.{space?}.{cop?}.{evict?}.{vec?}.{type}",
    rule=together(_vector_fits, _one_policy, _volatile_alone),
    section="9.7.9.11",
)
@modifiers(order=("weak", "volatile"), space=("global",), cop=("wb", "cg", "cs", "wt"), evict=L1_EVICTION, vec=VECTORS)
def st(
    v: Algebra, a: Address, b: Data, type: str, order: str = "", space: str = "", cop: str = "", evict: str = "", vec: str = ""
) -> None:
    """Store to global memory, or to wherever a generic address points."""
    _store(v, state_space(space), a, b, type)


@store("st.{order?}.{space}.{vec?}.{type}", name="st", rule=_vector_fits, section="9.7.9.11")
@modifiers(order=("weak", "volatile"), space=("shared", "shared::cta"), vec=("v2", "v4"))
@store("st.{space}.{vec?}.{type}", name="st", rule=_vector_fits, section="9.7.9.11")
@modifiers(space=("local", "param", "param::func"), vec=("v2", "v4"))
def st_space(v: Algebra, a: Address, b: Data, space: str, type: str, order: str = "", vec: str = "") -> None:
    """Store to the named state space; to a parameter only for a call."""
    _store(v, state_space(space), a, b, type)


@store(
    "st.{order}.{scope}.{space?}.{evict?}.{vec?}.{type}",
    name="st",
    rule=together(_vector_fits, _hints_are_for_global),
    section="9.7.9.11",
)
@modifiers(
    order=("relaxed", "release"), scope=SCOPES, space=("global", "shared", "shared::cta"), evict=L1_EVICTION, vec=("v2", "v4")
)
def st_ordered(
    v: Algebra, a: Address, b: Data, order: str, scope: str, type: str, space: str = "", evict: str = "", vec: str = ""
) -> None:
    """A store that other threads of the scope can synchronise with."""
    _store(v, state_space(space), a, b, type)


@table.instruction("prefetch.{space?}.{level}", a="addr", effect=Effect.PREFETCH, unit=by_space, section="9.7.9.15")
@modifiers(space=("global", "local"), level=("L1", "L2"))
@table.instruction("prefetch.global.{level}", sm=80, ptx=(7, 4), effect=Effect.PREFETCH, unit=by_space, section="9.7.9.15")
@modifiers(level=("L2::evict_last", "L2::evict_normal"))
@operands(a="addr")
@table.instruction("prefetchu.{level}", a="addr", name="prefetchu", effect=Effect.PREFETCH, unit=by_space, section="9.7.9.15")
@modifiers(level=("L1",))
def prefetch(v: Algebra, a: Address, level: str, space: str = "") -> None:
    """Bring the cache line of the address nearer."""
    v.no_effect()


WINDOWS = ("const", "global", "local", "shared", "shared::cta")
WINDOW_NEEDS: dict[str, table.Need] = {
    "space=shared::cta": (75, (7, 8)),
    "space=param": (75, (7, 7)),
    "space=param::entry": (75, (8, 3)),
}


@table.instruction("isspacep.{space}", space=WINDOWS, needs=WINDOW_NEEDS, effect=Effect.NONE, unit=Unit.ALU, section="9.7.9.19")
@operands(d="pred", a="u64")
def isspacep(v: Algebra, a: Number, space: str) -> Number:
    """Whether a generic address falls in the window of a state space."""
    return v.is_space(state_space(space), a)


@table.instruction(
    "cvta.{to?}.{space}.{type}",
    needs=WINDOW_NEEDS,
    effect=Effect.NONE,
    unit=Unit.ALU,
    symbols=lambda modifiers: "to" not in modifiers,
    section="9.7.9.20",
)
@modifiers(to=("to",), space=(*WINDOWS, "param", "param::entry"), type=("u64",))
@operands(d="{type}", a="{type}")
def cvta(v: Algebra, a: Number, space: str, type: str, to: str = "") -> Number:
    """The generic address of an address in a state space (of a variable, too); with `to`, the other way round."""
    return v.from_generic(state_space(space), a) if to else v.to_generic(state_space(space), a)
