"""Exchange between the lanes of a warp: shuffles, votes, matches and warp-wide reductions (PTX ISA 9.7.9.6, 9.7.13.9 to 12)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ptxgen.isa import table
from ptxgen.isa.algebra import Algebra, Number
from ptxgen.isa.effects import Effect, LaneResult
from ptxgen.isa.opcode import modifiers, operands
from ptxgen.isa.parts import dtype
from ptxgen.isa.units import Unit
from ptxgen.target import WARP_SIZE
from ptxgen.types import B32, PRED, S32, U32

instruction = partial(table.instruction, effect=Effect.NONE, unit=Unit.ALU)

LANES = range(WARP_SIZE)


def members(v: Algebra, mask: Number) -> Number:
    """u32: the lanes of the mask that are here."""
    return v.ballot(v.const(1, PRED)) & v.bits(mask, U32)


@instruction("shfl.sync.{mode}.b32", unit=Unit.SHUFFLE, lanes=LaneResult.SHUFFLED, section="9.7.9.6")
@modifiers(mode=("up", "down", "bfly", "idx"))
@operands(d="b32", dp="pred?", a="b32", b="b32:u32", c="b32:u32", mask="b32:u32")
def shfl(v: Algebra, a: Number, b: Number, c: Number, mask: Number, mode: str) -> tuple[Number, Number]:
    """The value of a in another lane: b lanes up or down, lane ^ b, or lane b. c: the last lane (bits 0-4), the mask of a
    segment (bits 8-12). Out of range, a lane keeps its own value and the predicate is false."""
    lane, by, bounds = v.bits(v.lane(), S32), v.bits(b, S32) & 31, v.bits(c, S32)
    segment = (bounds >> 8) & 31
    first = lane & segment
    last = first | (bounds & 31 & ~segment)
    source = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": first | (by & ~segment)}[mode]
    valid = source >= last if mode == "up" else source <= last
    source = v.bits(v.select(valid, source, lane), U32)
    v.check_shuffle(source, valid, mask)
    return v.from_lane(a, source), valid


@instruction("vote.sync.{mode}.pred", d="pred", a="pred", mask="b32:u32", lanes=LaneResult.SAME, section="9.7.13.9")
@modifiers(mode=("all", "any", "uni"))
def vote(v: Algebra, a: Number, mask: Number, mode: str) -> Number:
    """Whether the predicate holds in all, in any, or in all or none of the lanes of the mask."""
    here = members(v, mask)
    yes = v.ballot(a) & here
    return {"all": yes == here, "any": yes != 0, "uni": (yes == here) | (yes == 0)}[mode]


@instruction("vote.sync.{mode}.b32", mode=("ballot",), name="vote", lanes=LaneResult.SAME, section="9.7.13.9")
@operands(d="b32:u32", a="pred", mask="b32:u32")
def vote_ballot(v: Algebra, a: Number, mask: Number, mode: str) -> Number:
    """One bit a lane of the mask: its predicate."""
    return v.bits(v.ballot(a) & members(v, mask), B32)


@instruction("match.{mode}.sync.{type}", name="match", lanes=LaneResult.MIXED, section="9.7.13.10")
@modifiers(mode=("any",), type=("b32", "b64"))
@operands(d="b32:u32", a="{type}", mask="b32:u32")
def match_any(v: Algebra, a: Number, mask: Number, mode: str, type: str) -> Number:
    """The lanes of the mask that hold the same value as this one."""
    d = v.const(0, U32)
    for i in LANES:
        same = a == v.from_lane(a, [i] * WARP_SIZE)
        d = d | v.select(same, v.const(1 << i, U32), v.const(0, U32))
    return v.bits(d & members(v, mask), B32)


@instruction("match.{mode}.sync.{type}", name="match", lanes=LaneResult.MIXED, section="9.7.13.10")
@modifiers(mode=("all",), type=("b32", "b64"))
@operands(d="b32:u32", dp="pred?", a="{type}", mask="b32:u32")
def match_all(v: Algebra, a: Number, mask: Number, mode: str, type: str) -> tuple[Number, Number]:
    """The mask if all its lanes hold one value, else 0; the predicate says which."""
    here = members(v, mask)
    leader = 31 - v.clz(here & (0 - here))  # the lowest lane
    same = (v.ballot(a == v.from_lane(a, leader)) & here) == here
    return v.bits(v.select(same, here, v.const(0, U32)), B32), same


@instruction("activemask.b32", d="b32:u32", lanes=LaneResult.SAME, section="9.7.13.11")
def activemask(v: Algebra) -> Number:
    """The lanes that execute this instruction together."""
    return v.bits(v.ballot(v.const(1, PRED)), B32)


@instruction("redux.sync.{op}.{type}", sm=80, ptx=(7, 0), unit=Unit.SPECIAL, lanes=LaneResult.SAME, section="9.7.13.12")
@modifiers(op=("add", "min", "max"), type=("u32", "s32"))
@operands(d="{type}", a="{type}", mask="b32:u32")
@instruction("redux.sync.{op}.{type}", sm=80, ptx=(7, 0), unit=Unit.SPECIAL, lanes=LaneResult.SAME, section="9.7.13.12")
@modifiers(op=("and", "or", "xor"), type=("b32",))
@operands(d="{type}", a="b32:u32", mask="b32:u32")
def redux(v: Algebra, a: Number, mask: Number, op: str, type: str) -> Number:
    """The sum, least, greatest, and, or, xor of a over the lanes of the mask."""
    kind = dtype(type)
    least, greatest = (-(1 << 31), (1 << 31) - 1) if kind.is_signed else (0, (1 << 32) - 1)
    neutral = {"add": 0, "min": greatest, "max": least, "and": (1 << 32) - 1, "or": 0, "xor": 0}[op]
    combine: Callable[[Number, Number], Number] = {
        "add": lambda a, b: a + b,
        "min": v.min,
        "max": v.max,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
    }[op]
    mine = ((members(v, mask) >> v.lane()) & 1) == 1
    d = v.select(mine, a, v.const(neutral, kind))
    for distance in (16, 8, 4, 2, 1):
        d = combine(d, v.from_lane(d, [lane ^ distance for lane in LANES]))
    return d


@instruction(
    "elect.sync", d="b32:u32", dp="pred", mask="b32:u32", sm=90, ptx=(8, 0), lanes=LaneResult.MIXED, section="9.7.13.14"
)
def elect(v: Algebra, mask: Number) -> tuple[Number, Number]:
    """The number of one lane of the mask (the lowest), and whether this is it."""
    here = members(v, mask)
    leader = 31 - v.clz(here & (0 - here))
    return v.bits(leader, B32), v.lane() == leader
