"""What the sanitiser asks of a warpgroup's products: whether what they read of shared memory is there for them, whether it
stays so until they were waited for, and whether all four warps execute them."""

from __future__ import annotations

import ctypes

from ptxgen.emulator.layout import ContextWord, State
from ptxgen.emulator.runtime.builder import Builder, IrValue
from ptxgen.emulator.runtime.check import ASYNCHRONOUSLY, access_word, check, who
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.emulator.runtime.products import CHUNK, chunk_offset
from ptxgen.emulator.runtime.proxies import passed
from ptxgen.emulator.runtime.reports import report
from ptxgen.emulator.runtime.shadow import BROUGHT, RECORD_BYTES, THREAD_MASK, AccessKind, Record, Slots
from ptxgen.emulator.runtime.views import Context, StructView, WarpState
from ptxgen.emulator.sanitizer import SPACE_CODES, FindingKind
from ptxgen.target import WARP_SIZE, WARPGROUP_SIZE

CAPACITY = 256
"""Products under way of a warp; of more, the earliest are not looked after."""
_CHUNK_BYTES = 2 * CHUNK
_CHUNKS = 2 * CHUNK  # of a group of 8 rows
_WARPS = WARPGROUP_SIZE // WARP_SIZE
_MIX = 0x01000193  # odd, and otherwise of no meaning


class PendingProduct(ctypes.Structure):
    """A product under way: its descriptor, groups of 8 columns, its group, the moment at which it was begun, its PTX line."""

    _fields_ = (
        ("descriptor", ctypes.c_int64),
        ("groups", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("epoch", ctypes.c_int32),
        ("serial", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("spare", ctypes.c_int32),
    )


_PRODUCT_BYTES = ctypes.sizeof(PendingProduct)
PRODUCTS_BYTES = CAPACITY * _PRODUCT_BYTES
"""Bytes of a warp's products. `products`, below, is their address."""


@runtime_function("i1", is_hot=True, context="ptr", state="ptr", descriptor="i64", groups="i64", line="i32")
def readable(b: Builder, context: IrValue, state: IrValue, descriptor: IrValue, groups: IrValue, line: IrValue) -> None:
    """Whether the warp may read b now. Two groups of 8 rows at a time, 16 bytes a lane."""
    c = Context(context)
    spread = descriptor.splat()
    lanes = b.vector(range(WARP_SIZE), "i64")
    row, half, later = lanes & CHUNK - 1, lanes >> 3 & 1, lanes >> 4
    fine = b.memory("i1")
    fine.store(1, "i1")
    with b.loop((groups + 1) >> 1) as (pair, _):
        group = (pair << 1).splat() + later
        mask = (group < groups.splat()).mask()
        addresses = chunk_offset(b, spread, group, row, half) + c[ContextWord.SHARED].splat()
        word = b.number(access_word(AccessKind.LOAD, 0, 0) | ASYNCHRONOUSLY)
        allowed = check(
            b, context, state, addresses, mask, b.number(_CHUNK_BYTES, "i64"), b.number(SPACE_CODES["shared"]), word, line
        )
        fine.store(fine.load("i1") & (allowed == mask), "i1")
    b.ret(fine.load("i1"))


@runtime_function(
    "void", context="ptr", state="ptr", descriptor="i64", groups="i64", line="i32", since="i32", kind="i32", fenced="i1"
)
def look_at_writes(
    b: Builder,
    context: IrValue,
    state: IrValue,
    descriptor: IrValue,
    groups: IrValue,
    line: IrValue,
    since: IrValue,
    kind: IrValue,
    fenced: IrValue,
) -> None:
    """Report `kind` once if a granule of b was written later than `since`, or with `fenced` by an ordinary instruction whose
    write has passed no proxy fence."""
    c = Context(context)
    shadow, shift, first_epoch = (
        c[ContextWord.SHADOW].as_pointer(),
        c[ContextWord.SHARED_SHIFT],
        c[ContextWord.FIRST_EPOCH].resized("i32"),
    )
    with b.loop(groups * _CHUNKS) as (chunk, _):
        offset = chunk_offset(b, descriptor, chunk >> 4, chunk & CHUNK - 1, chunk >> 3 & 1)
        first = offset >> shift
        with b.loop(b.number(_CHUNK_BYTES, "i64") >> shift) as (i, granules):
            write = StructView(shadow.at((first + i) * RECORD_BYTES + Slots.WEAK_WRITE * RECORD_BYTES), Record)
            by_copy = write["sync"] >= BROUGHT  # which writes as a product reads
            with b.when((write["epoch"] < first_epoch) | (write["serial"] <= since) | fenced & by_copy):
                granules.go_on()
            with b.when(fenced):
                thread, always = write["what"] & THREAD_MASK, b.number(1, "i1")
                with b.when(passed(b, context, state, b.number(0), thread, write["serial"], always)):
                    granules.go_on()
            report(b, context, state, kind, line, write["what"] & WARP_SIZE - 1, c[ContextWord.SHARED] + offset, who(write), 0)
            b.ret()


@runtime_function("i1", context="ptr", state="ptr", products="ptr", descriptor="i64", groups="i64", lanes="i32", line="i32")
def begin_product(
    b: Builder,
    context: IrValue,
    state: IrValue,
    products: IrValue,
    descriptor: IrValue,
    groups: IrValue,
    lanes: IrValue,
    line: IrValue,
) -> None:
    """Whether the product may be made: b is there, in bounds. Reports what is wrong, and looks after it from now on."""
    c, s = Context(context), WarpState(state)
    count_step(b, context, state, lanes, line)
    with b.when(~readable(b, context, state, descriptor, groups, line)):
        b.ret(0)
    look_at_writes(b, context, state, descriptor, groups, line, 0, b.number(FindingKind.PROXY), b.number(1, "i1"))
    count = s[State.PRODUCTS]
    with b.when(count >= CAPACITY):
        b.copy(products, products.at(_PRODUCT_BYTES), PRODUCTS_BYTES - _PRODUCT_BYTES)
        s[State.PRODUCTS] = count - 1
    count = s[State.PRODUCTS]
    product = StructView(products.at(count.resized("i64") * _PRODUCT_BYTES), PendingProduct)
    product["descriptor"], product["groups"], product["group"] = descriptor, groups.resized("i32"), s[State.PRODUCT_GROUP]
    product["epoch"], product["serial"] = c[ContextWord.EPOCH].resized("i32"), c[ContextWord.SERIAL].resized("i32")
    product["line"] = line
    s[State.PRODUCTS] = count + 1
    b.ret(1)


@runtime_function("void", context="ptr", state="ptr", lanes="i32", line="i32")
def count_step(b: Builder, context: IrValue, state: IrValue, lanes: IrValue, line: IrValue) -> None:
    """Remember that the warp has come to an instruction of a warpgroup, all lanes of it in a block of whole warpgroups."""
    c, s = Context(context), WarpState(state)
    s[State.PRODUCT_STEPS] = (s[State.PRODUCT_STEPS] + line) * _MIX
    s[State.PRODUCT_LINE] = line
    with b.when((lanes != -1) | ((c[ContextWord.THREADS] & WARPGROUP_SIZE - 1) != 0)):
        zero = b.number(0, "i64")
        report(b, context, state, b.number(FindingKind.WARPGROUP), line, b.number(0), zero, zero, zero)


@runtime_function("void", state="ptr")
def commit_products(b: Builder, state: IrValue) -> None:
    """Begin a new group."""
    s = WarpState(state)
    s[State.PRODUCT_GROUP] = s[State.PRODUCT_GROUP] + 1


@runtime_function("void", context="ptr", state="ptr", products="ptr", pending="i32")
def wait_products(b: Builder, context: IrValue, state: IrValue, products: IrValue, pending: IrValue) -> None:
    """Complete the products but for those of the last `pending` groups: until now they have read b."""
    c, s = Context(context), WarpState(state)
    limit = s[State.PRODUCT_GROUP] - pending
    kept = b.memory("i64")
    kept.store(0, "i64")
    with b.loop(s[State.PRODUCTS].resized("i64")) as (i, entries):
        entry = products.at(i * _PRODUCT_BYTES)
        product = StructView(entry, PendingProduct)
        with b.when(product["group"].signed_below(limit)):
            descriptor, groups, line = product["descriptor"], product["groups"].resized("i64"), product["line"]
            kind = b.number(FindingKind.OVERWRITTEN)
            look_at_writes(b, context, state, descriptor, groups, line, product["serial"], kind, b.number(0, "i1"))
            with b.when(product["epoch"] != c[ContextWord.EPOCH].resized("i32")):
                readable(b, context, state, descriptor, groups, line)
            entries.go_on()
        b.copy(products.at(kept.load("i64") * _PRODUCT_BYTES), entry, _PRODUCT_BYTES)
        kept.store(kept.load("i64") + 1)
    s[State.PRODUCTS] = kept.load("i64").resized("i32")


@runtime_function("void", context="ptr")
def compare_warps(b: Builder, context: IrValue) -> None:
    """At the end of a block: report a warp that has not executed the instructions of a warpgroup that its first warp has."""
    c = Context(context)
    warps, state_bytes = c[ContextWord.WARPS].as_pointer(), c[ContextWord.STATE_BYTES]
    with b.loop(c[ContextWord.WARP_COUNT]) as (warp, _):
        state = warps.at(warp * state_bytes)
        s, first = WarpState(state), WarpState(warps.at((warp & -_WARPS) * state_bytes))
        with b.when(s[State.PRODUCT_STEPS] != first[State.PRODUCT_STEPS]):
            mine, theirs = s[State.PRODUCT_LINE], first[State.PRODUCT_LINE]
            zero = b.number(0, "i64")
            line = (mine == 0).select(theirs, mine)
            report(b, context, state, b.number(FindingKind.WARPGROUP), line, b.number(0), zero, zero, zero)
