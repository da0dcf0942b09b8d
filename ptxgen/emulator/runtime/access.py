"""Loads and stores of 32 lanes at once, with quick ways for the patterns of addresses that kernels have.

The pattern of a vector of addresses is found once (`sorter`) and serves every access through it at constant offsets."""

from __future__ import annotations

from enum import IntEnum
from functools import cache

from ptxgen.emulator.runtime.builder import Builder, IrValue, RuntimeFunction
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.emulator.runtime.reports import report_lanes
from ptxgen.emulator.sanitizer import FindingKind
from ptxgen.target import WARP_SIZE

_HALF = WARP_SIZE // 2
_V64 = f"<{WARP_SIZE} x i64>"


class Pattern(IntEnum):
    """How the addresses of a warp lie. Lanes that are off count as the first that is on."""

    RUN = 0
    """Every lane is on, and they are consecutive."""
    SAME = 1
    HALF_RUNS = 2
    """Each half-warp is consecutive, as a 16-byte column layout gives (Q4_0, Q4_1, ...)."""
    HALF_SAME = 3
    """Each half-warp has one address."""
    SCATTERED = 4
    NOBODY = 5
    """No lane is on."""


@cache
def sorter(step: int) -> RuntimeFunction:
    """(memory for 32 addresses, addresses, mask) -> `Pattern`, where consecutive lanes are `step` bytes apart. Fills the memory
    with the addresses, those of lanes that are off replaced."""

    @runtime_function("i32", name=f"sort.{step}", part=f"sort.{step}", is_hot=True, memory="ptr", addresses=_V64, lanes="i32")
    def sort(b: Builder, memory: IrValue, addresses: IrValue, lanes: IrValue) -> None:
        with b.when(lanes == 0):
            b.ret(Pattern.NOBODY)
        first = addresses.element(b.first_lane(lanes)).splat()
        usable = lanes.truths().select(addresses, first)
        memory.store(usable, align=64)
        distances = usable - first
        runs = (distances == b.vector([lane * step for lane in range(WARP_SIZE)], "i64")).mask() == -1
        with b.when((lanes == -1) & runs):
            b.ret(Pattern.RUN)
        with b.when((distances == 0).mask() == -1):
            b.ret(Pattern.SAME)
        in_half = usable - usable.shuffled([lane // _HALF * _HALF for lane in range(WARP_SIZE)])
        half_runs = (in_half == b.vector([lane % _HALF * step for lane in range(WARP_SIZE)], "i64")).mask() == -1
        half_same = (in_half == 0).mask() == -1
        b.ret(half_runs.select(b.number(Pattern.HALF_RUNS), half_same.select(b.number(Pattern.HALF_SAME), Pattern.SCATTERED)))

    return sort


def result_type(bits: int, count: int) -> str:
    """What a `loader` gives."""
    one = f"<{WARP_SIZE} x i{bits}>"
    return one if count == 1 else "{ " + ", ".join([one] * count) + " }"


@cache
def loader(bits: int, count: int) -> RuntimeFunction:
    """(sorted addresses, offset, pattern) -> `count` vectors of elements of `bits`, undefined where a lane is off."""
    name, element, size = f"load.{bits}x{count}", f"i{bits}", bits // 8
    wide = f"<{WARP_SIZE * count} x {element}>"

    @runtime_function(result_type(bits, count), name=name, part=name, is_hot=True, memory="ptr", offset="i64", pattern="i32")
    def load(b: Builder, memory: IrValue, offset: IrValue, pattern: IrValue) -> None:
        def address(lane: int) -> IrValue:
            return (memory.at(lane, "i64").load("i64", align=8) + offset).as_pointer()

        def give(lanes_in_order: IrValue) -> None:
            """Return the vectors that are woven into one."""
            b.ret_several([lanes_in_order.shuffled(range(k, WARP_SIZE * count, count)) for k in range(count)])

        with b.when(pattern == Pattern.NOBODY):
            b.ret_several([b.undefined(f"<{WARP_SIZE} x {element}>")] * count)
        with b.when(pattern == Pattern.RUN):
            give(address(0).load(wide, align=1))
        with b.when(pattern == Pattern.SAME):
            b.ret_several([address(0).at(k, element).load(element, align=1).splat() for k in range(count)])
        if count == 1:
            with b.when(pattern == Pattern.HALF_RUNS):
                halves = [address(lane).load(f"<{_HALF} x {element}>", align=1) for lane in (0, _HALF)]
                b.ret(halves[0].shuffled(range(WARP_SIZE), halves[1]))
            with b.when(pattern == Pattern.HALF_SAME):
                halves = [address(lane).load(element, align=1).splat(_HALF) for lane in (0, _HALF)]
                b.ret(halves[0].shuffled(range(WARP_SIZE), halves[1]))
        # Straight-line scalar loads beat the gather instructions of every x86 tried. Narrow stores do not forward to a wide
        # load, so single elements are put together in registers; wider pieces go through the stack, which takes them apart.
        if count == 1:
            gathered = b.undefined(wide)
            for lane in range(WARP_SIZE):
                gathered = gathered.with_element(lane, address(lane).load(element, align=1))
            b.ret(gathered)
            return
        pieces = b.memory(wide, align=64)
        for lane in range(WARP_SIZE):
            pieces.at(lane * count * size).store(address(lane).load(f"<{count} x {element}>", align=1), align=1)
        give(pieces.load(wide, align=64, volatile=True))

    return load


@cache
def storer(bits: int, count: int) -> RuntimeFunction:
    """(sorted addresses, offset, pattern, mask, `count` vectors) -> nothing; lanes store in ascending order."""
    name, element, size = f"store.{bits}x{count}", f"i{bits}", bits // 8
    vectors = {f"v{k}": f"<{WARP_SIZE} x {element}>" for k in range(count)}

    @runtime_function(
        "void", name=name, part=name, is_hot=True, memory="ptr", offset="i64", pattern="i32", lanes="i32", **vectors
    )
    def store(b: Builder, memory: IrValue, offset: IrValue, pattern: IrValue, lanes: IrValue, *values: IrValue) -> None:
        with b.when(pattern == Pattern.RUN):
            joined = list(values)
            while len(joined) > 1:
                width = WARP_SIZE * count // len(joined) * 2
                joined = [one.shuffled(range(width), other) for one, other in zip(joined[::2], joined[1::2], strict=True)]
            woven = joined[0].shuffled([k * WARP_SIZE + lane for lane in range(WARP_SIZE) for k in range(count)])
            (memory.load("i64", align=64) + offset).as_pointer().store(woven, align=1)
            b.ret()
        tables = [b.table(v) for v in values]
        with b.each_lane(lanes) as (lane, _):
            to = (b.entry(memory, lane, "i64") + offset).as_pointer()
            for k, table in enumerate(tables):
                to.at(k * size).store(b.entry(table, lane, element), align=1)

    return store


@cache
def checked_loader(bits: int, count: int) -> RuntimeFunction:
    """(addresses, mask) -> what a `loader` gives, all ones (a NaN) in the lanes that are off. Sorting, loading and this are one
    call of a sanitised kernel, which takes longer to compile than to run."""
    name = f"load.checked.{bits}x{count}"

    @runtime_function(result_type(bits, count), name=name, part=name, addresses=_V64, lanes="i32")
    def load(b: Builder, addresses: IrValue, lanes: IrValue) -> None:
        memory = b.memory(_V64, align=64)
        pattern = sorter(count * bits // 8)(b, memory, addresses, lanes)
        loaded = loader(bits, count)(b, memory, b.number(0, "i64"), pattern)
        b.ret_several([lanes.truths().select(one, -1) for one in _members(loaded, bits, count)])

    return load


@cache
def checked_storer(bits: int, count: int) -> RuntimeFunction:
    """(context, state, line, addresses, mask, `count` vectors) -> nothing. Lanes that read back something else than they wrote
    lost a race with a lane of the same instruction, and are reported."""
    name, size = f"store.checked.{bits}x{count}", count * bits // 8
    vectors = {f"v{k}": f"<{WARP_SIZE} x i{bits}>" for k in range(count)}

    @runtime_function(
        "void",
        name=name,
        part=name,
        is_hot=False,
        context="ptr",
        state="ptr",
        line="i32",
        addresses=_V64,
        lanes="i32",
        **vectors,
    )
    def store(
        b: Builder, context: IrValue, state: IrValue, line: IrValue, addresses: IrValue, lanes: IrValue, *values: IrValue
    ) -> None:
        memory, none = b.memory(_V64, align=64), b.number(0, "i64")
        pattern = sorter(size)(b, memory, addresses, lanes)
        storer(bits, count)(b, memory, none, pattern, lanes, *values)
        back = _members(loader(bits, count)(b, memory, none, pattern), bits, count)
        for got, value in zip(back, values, strict=True):
            lost = (got != value).mask() & lanes
            report_lanes(b, context, state, FindingKind.OVERLAP, line, lost, addresses, size)

    return store


def _members(loaded: IrValue, bits: int, count: int) -> list[IrValue]:
    """The vectors of what a `loader` gave."""
    return [loaded] if count == 1 else [loaded.member(k, f"<{WARP_SIZE} x i{bits}>") for k in range(count)]


@cache
def picker(element: str) -> RuntimeFunction:
    """(a vector, numbers of lanes) -> the vector whose lanes have what those lanes of the first have."""
    name, vector = f"pick.{element}", f"<{WARP_SIZE} x {element}>"
    held = "i8" if element == "i1" else element  # a vector of truths has no addresses

    @runtime_function(vector, name=name, part=name, is_hot=True, values=vector, sources=f"<{WARP_SIZE} x i32>")
    def pick(b: Builder, values: IrValue, sources: IrValue) -> None:
        table = b.table(values.resized(f"<{WARP_SIZE} x i8>") if element == "i1" else values)
        order = b.table(sources & WARP_SIZE - 1)
        picked = b.memory(f"<{WARP_SIZE} x {held}>", align=64)
        with b.loop(b.number(WARP_SIZE, "i64")) as (i, _):
            picked.at(i, held).store(b.entry(table, b.entry(order, i, "i32"), held))
        result = picked.load(f"<{WARP_SIZE} x {held}>", 64)
        b.ret(result.resized(vector) if element == "i1" else result)

    return pick
