"""How the rows are probed whose operands are not plain registers: memory, barriers, branches, flags, constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from ptxgen.isa.effects import Effect
from ptxgen.isa.operands import Address, AnyOperand, Immediate, LabelRef, Register, Symbol, Vector
from ptxgen.isa.table import Instruction
from ptxgen.target import MAX_THREADS, WARP_SIZE
from ptxgen.types import B32, B64, BY_NAME, PRED, S32, U32, U64
from tests.ptxgen.isa.probe import Field, Form, Writer, keep, make_destination, plain

Modifiers = Mapping[str, str]
FULL = Immediate(0xFFFFFFFF, U32)
SLOT = 32
"""Bytes of shared or local memory that a lane gets."""
LOGIC_TABLES = (0x00, 0x1B, 0x40, 0x6A, 0x96, 0xE8, 0xEA, 0xFE, 0xFF)


def forms(row: Instruction, modifiers: Modifiers) -> Iterator[Form]:
    """The ways to probe this combination; none for the few that need more than one kernel."""
    if modifiers.get("space") == "param::func" or (row.mnemonic == "st" and modifiers.get("space") == "param"):
        return
    if row.effect is Effect.ASYNC_PRODUCT:  # tests/ptxgen/isa/products.py
        return
    if modifiers.get("space") in ("param", "param::entry") and row.mnemonic == "ld" and _size(modifiers) > 8:
        return
    if row.name == "lop3":
        for table in LOGIC_TABLES:
            yield partial(plain, table=Immediate(table, S32))
    elif row.name in _FORMS:
        yield _FORMS[row.name]
    elif any(o.name == "mask" for o in row.operands):
        yield partial(plain, mask=FULL)
    else:
        yield plain


def _size(modifiers: Modifiers) -> int:
    return BY_NAME[modifiers["type"]].bytes * int(modifiers.get("vec", "v1")[1:])


def _slot(w: Writer, space: str) -> Register:
    """The address of this lane's slot in a new shared or local array."""
    name = w.variable(space, SLOT * (WARP_SIZE if space == "shared" else 1))
    address = w.register(U64)
    w.line(f"mov.u64 {address}, {name};")
    if space == "shared":
        w.line(f"mad.wide.u32 {address}, %lane, {SLOT}, {address};")
    return address


def _memory(w: Writer, space: str, source: Field | None, result: Field | None) -> Address:
    """Memory of the space for this lane, filled from the input field; for global memory the record's field itself."""
    if space in ("global", "generic"):
        base = "%out" if source is None else "%in"
        place = source if source is not None else result
        assert place is not None
        address = w.register(U64)
        w.line(f"add.u64 {address}, {base}, {place.offset};")
        if space == "generic":
            w.line(f"cvta.global.u64 {address}, {address};")
        return Address(address)
    slot = _slot(w, space)
    if source is not None:
        _copy(w, space, slot, source, into=True)
    return Address(slot)


def _copy(w: Writer, space: str, slot: Register, place: Field, *, into: bool) -> None:
    """Copy a field between the record and a slot, element by element."""
    value = w.register(BY_NAME[f"b{place.type.bits}"])
    for i in range(place.count):
        offset = i * place.type.bytes
        if into:
            w.line(f"ld.global.b{place.type.bits} {value}, [%in+{place.offset + offset}];")
            w.line(f"st.{space}.b{place.type.bits} [{slot}+{offset}], {value};")
        else:
            w.line(f"ld.{space}.b{place.type.bits} {value}, [{slot}+{offset}];")
            w.line(f"st.global.b{place.type.bits} [%out+{place.offset + offset}], {value};")


def _space(modifiers: Modifiers) -> str:
    return modifiers.get("space", "generic").partition("::")[0]


def _load(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    space = "global" if row.name == "ld_nc" else _space(modifiers)
    type, count = BY_NAME[modifiers["type"]], int(modifiers.get("vec", "v1")[1:])
    if space == "param":
        address = Address(Symbol("word"))
    elif space == "const":
        address = Address(Symbol(w.variable("const", 16)))
    else:
        address = _memory(w, space, w.input_field(type, count), None)
    d = make_destination(w, row, row.destinations[0], modifiers)
    w.test(row.text(modifiers, {"d": d, "a": address}))
    keep(w, d)


def _load_together(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    """All lanes load what the first one's record has."""
    type, count = BY_NAME[modifiers["type"]], int(modifiers.get("vec", "v1")[1:])
    address = _memory(w, _space(modifiers), w.input_field(type, count), None).base
    low, high = w.register(B32), w.register(B32)
    w.line(f"mov.b64 {{{low}, {high}}}, {address};")
    for half in (low, high):
        w.line(f"shfl.sync.idx.b32 {half}, {half}, 0, 31, 0xffffffff;")
    w.line(f"mov.b64 {address}, {{{low}, {high}}};")
    d = make_destination(w, row, row.destinations[0], modifiers)
    w.test(row.text(modifiers, {"d": d, "a": Address(address)}))
    keep(w, d)


def _store(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    space = _space(modifiers)
    type, count = BY_NAME[modifiers["type"]], int(modifiers.get("vec", "v1")[1:])
    registers = tuple(w.load(type) for _ in range(count))
    result = w.output_field(type, count)
    address = _memory(w, space, None, result)
    w.test(row.text(modifiers, {"a": address, "b": Vector(registers) if count > 1 else registers[0]}))
    if space in ("shared", "local"):
        assert isinstance(address.base, Register)
        _copy(w, space, address.base, result, into=False)


def _atomic(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    """The cell starts with an input; its old value (atom) and what it becomes are the results."""
    space, type = _space(modifiers), BY_NAME[modifiers["type"]]
    start = w.load(type)
    bits = f"b{type.bits}"
    cell = w.output_field(type)
    address = _memory(w, space, None, cell)
    w.line(f"st{'' if space == 'generic' else '.' + space}.{bits} {address}, {start};")
    operands = {o.name: w.load(type, f"atom.{o.name}") for o in row.sources if o.name != "a"}
    d = {o.name: make_destination(w, row, o, modifiers) for o in row.destinations}
    w.test(row.text(modifiers, {**d, "a": address, **operands}))
    for operand in d.values():
        keep(w, operand)
    if space == "shared":
        assert isinstance(address.base, Register)
        _copy(w, space, address.base, cell, into=False)


def _carry(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    """The flag is set by an addition before, and seen through another after."""
    type = BY_NAME[modifiers["type"]]
    x, y, seen = w.load(type, "add.a"), w.load(type, "add.b"), w.register(type)
    plain_sources = {o.name: w.load(type, f"add.{o.name}") for o in row.sources}
    d = w.register(type)
    w.line(f"add.cc.{type} {seen}, {x}, {y};")
    w.test(row.text(modifiers, {"d": d, **plain_sources}))
    w.line(f"addc.{type} {seen}, 0, 0;")
    w.store(d)
    w.store(seen)


def _address_only(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    """prefetch: an address and no result."""
    space = _space(modifiers)
    if "L2::" in modifiers["level"]:
        space = "global"
    address = _memory(w, space, w.input_field(B64), None)
    w.test(row.text(modifiers, {"a": address}))


def _window(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    """isspacep: asked of a generic address of global, shared and local memory."""
    places = []
    for space in ("shared", "local"):
        generic = w.register(U64)
        w.line(f"cvta.{space}.u64 {generic}, {_slot(w, space)};")
        places.append(generic)
    generic = w.register(U64)
    w.line(f"cvta.global.u64 {generic}, %in;")
    for address in (*places, generic):
        d = w.register(PRED)
        w.test(row.text(modifiers, {"d": d, "a": address}))
        w.store(d)


def _convert_address(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    """cvta: there and back again gives the same address, which is the result (less the start of the window)."""
    space = _space(modifiers)
    if space in ("shared", "local"):
        start = _slot(w, space)
    else:
        start = w.register(U64)
        w.line(f"mov.u64 {start}, {'word' if space == 'param' else '%in'};")
        if space == "const":
            w.line(f"mov.u64 {start}, {w.variable('const', 16)};")
    there, back, difference = w.register(U64), w.register(U64), w.register(U64)
    if "to" in modifiers:
        w.line(f"cvta.{modifiers['space']}.u64 {there}, {start};")
        w.test(row.text(modifiers, {"d": back, "a": there}))
    else:
        w.test(row.text(modifiers, {"d": there, "a": start}))
        w.line(f"cvta.to.{modifiers['space']}.u64 {back}, {there};")
    w.line(f"sub.u64 {difference}, {back}, {start};")
    w.store(difference)


def _branch(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    """Half of the lanes jump over an addition."""
    value, odd = w.load(U32), w.register(PRED)
    label = f"over{len(w.registers)}"
    w.line(f"setp.lt.s32 {odd}, {w.load(S32)}, 0;")
    guard = "" if "uni" in modifiers else f"@{odd} "
    w.test(guard + row.text(modifiers, {"target": LabelRef(label)}))
    w.line(f"add.u32 {value}, {value}, 1;")
    w.line(f"{label}:")
    w.store(value)


def _indexed_branch(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    number = len(w.registers)
    value, index = w.load(U32), w.load(U32)
    w.line(f"and.b32 {index}, {index}, {0 if 'uni' in modifiers else 1};")
    w.line(f"list{number}: .branchtargets first{number}, second{number};")
    w.test(row.text(modifiers, {"index": index, "targets": LabelRef(f"list{number}")}))
    w.line(f"first{number}:")
    w.line(f"add.u32 {value}, {value}, 1;")
    w.line(f"second{number}:")
    w.store(value)


def _never(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    """ret, exit, trap, setmaxnreg under a guard that does not hold."""
    guard = w.register(PRED)
    w.line(f"setp.gt.u32 {guard}, %lane, {MAX_THREADS};")
    w.test(f"@{guard} {row.text(modifiers, {o.name: Immediate(240, S32) for o in row.sources})}")


def _call(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    """Call a function that adds one."""
    name = f"function{len(w.registers)}"
    w.module.append(f".func (.reg .u32 %result) {name} (.reg .u32 %given) {{ add.u32 %result, %given, 1; ret; }}")
    value, result = w.load(U32), w.register(U32)
    w.test(f"{row.opcode(modifiers)} ({result}), {name}, ({value});")
    w.store(result)


def _barrier(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    w.test(row.text(modifiers, {"a": Immediate(0, U32), "mask": FULL}))


def _counting_barrier(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    plain(w, row, modifiers, a=Immediate(0, U32), b=Immediate(WARP_SIZE, U32))


def _sleep(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    w.test(row.text(modifiers, {"a": Immediate(20, U32)}))


def _words(w: Writer, space: str, count: int) -> tuple[Register, Field]:
    """This lane's `count` words in a new shared array, filled, packed without gaps; a barrier follows."""
    address = w.register(U64)
    w.line(f"mov.u64 {address}, {w.variable(space, 4 * count * WARP_SIZE)};")
    w.line(f"mad.wide.u32 {address}, %lane, {4 * count}, {address};")
    place = w.input_field(B32, count)
    _copy(w, space, address, place, into=True)
    w.line("bar.warp.sync 0xffffffff;")
    return address, place


def _matrix_rows(w: Writer, address: Register, count: int) -> Address:
    """Row addresses for ldmatrix: lane i names the i-th 16 bytes of the array (modulo its size)."""
    base, row = w.register(U64), w.register(U32)
    w.line(f"mad.wide.s32 {base}, %lane, -{4 * count}, {address};")
    w.line(f"and.b32 {row}, %lane, {8 * count - 1};")
    w.line(f"mad.wide.u32 {base}, {row}, 16, {base};")
    return Address(base)


def _load_matrix(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    count = int(modifiers["num"][1:])
    address, _ = _words(w, "shared", count)
    rows = _matrix_rows(w, address, count)
    if "space" not in modifiers:
        w.line(f"cvta.shared.u64 {rows.base}, {rows.base};")
    d = make_destination(w, row, row.destinations[0], modifiers)
    w.test(row.text(modifiers, {"d": d, "a": rows}))
    keep(w, d)


def _store_matrix(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    count = int(modifiers["num"][1:])
    address, _ = _words(w, "shared", count)
    rows = _matrix_rows(w, address, count)
    if "space" not in modifiers:
        w.line(f"cvta.shared.u64 {rows.base}, {rows.base};")
    b = Vector(tuple(w.load(B32) for _ in range(count)))
    w.test(row.text(modifiers, {"a": rows, "b": b}))
    w.line("bar.warp.sync 0xffffffff;")
    _copy(w, "shared", address, w.output_field(B32, count), into=False)


def _async_copy(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    """Each size, whole and with a part that is filled with zeros."""
    slot = _slot(w, "shared")
    for size in (16,) if modifiers["cache"] == "cg" else (4, 8, 16):
        for taken in (None, Immediate(0, U32), Immediate(size - 1, U32)):
            source = w.input_field(B32, size // 4)
            global_address = w.register(U64)
            w.line(f"add.u64 {global_address}, %in, {source.offset};")
            operands: dict[str, AnyOperand] = {"a": Address(slot), "b": Address(global_address), "size": Immediate(size, U32)}
            if taken is not None:
                operands["taken"] = taken
            w.test(row.text(modifiers, operands))
            w.line("cp.async.wait_all;")
            _copy(w, "shared", slot, w.output_field(B32, size // 4), into=False)


def _mbarrier(w: Writer) -> Register:
    """The address of a slot of this lane with an mbarrier of one arrival in it. What the probes of mbarriers end with is the
    ring of tests/ptxgen/emulator/test_bulk_copies.py, on GPUs too; they keep nothing."""
    slot = _slot(w, "shared")
    w.line(f"mbarrier.init.shared.b64 [{slot}], 1;")
    return slot


def _make_mbarrier(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    w.test(row.text(modifiers, {"a": Address(_slot(w, "shared")), "count": Immediate(1, U32)}))


def _arrive_expecting(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    w.test(row.text(modifiers, {"d": w.register(B64), "a": Address(_mbarrier(w)), "tx": Immediate(0, U32)}))


def _try_wait(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    """Of a new mbarrier, the phase of parity 1 counts as complete."""
    w.test(row.text(modifiers, {"d": w.register(PRED), "a": Address(_mbarrier(w)), "parity": Immediate(1, U32)}))


def _bulk_copy(w: Writer, row: Instruction, modifiers: Modifiers) -> None:
    slot, source, state, complete = _mbarrier(w), w.register(U64), w.register(B64), w.register(PRED)
    w.line("fence.mbarrier_init.release.cluster;")
    w.line(f"add.u64 {source}, %in, {w.input_field(B32, 4).offset};")
    w.line(f"mbarrier.arrive.expect_tx.shared.b64 {state}, [{slot}], 16;")
    size = Immediate(16, U32)
    w.test(row.text(modifiers, {"a": Address(slot, 16), "b": Address(source), "size": size, "barrier": Address(slot)}))
    w.line(f"WAIT{w.marked}:")
    w.line(f"mbarrier.try_wait.parity.shared.b64 {complete}, [{slot}], 0;")
    w.line(f"@!{complete} bra WAIT{w.marked};")


_FORMS: dict[str, Form] = {
    "ld": _load, "ld_nc": _load, "ldu": _load_together, "st": _store, "atom": _atomic, "atom_cas": _atomic, "red": _atomic,
    "atom_add_half": _atomic, "red_add_half": _atomic, "prefetch": _address_only, "prefetchu": _address_only,
    "add_cc": _carry, "addc": _carry, "sub_cc": _carry, "subc": _carry, "mad_cc": _carry, "madc": _carry,
    "isspacep": _window, "cvta": _convert_address, "bra": _branch, "brx_idx": _indexed_branch, "ret": _never, "exit": _never,
    "trap": _never, "setmaxnreg": _never, "call": _call, "bar_sync": _barrier, "barrier_sync": _barrier,
    "bar_red": _counting_barrier, "barrier_red": _counting_barrier,
    "bar_warp_sync": _barrier, "nanosleep": _sleep, "ldmatrix": _load_matrix, "stmatrix": _store_matrix,
    "cp_async": _async_copy, "mbarrier_init": _make_mbarrier, "mbarrier_arrive_expect_tx": _arrive_expecting,
    "mbarrier_try_wait_parity": _try_wait, "cp_async_bulk": _bulk_copy,
}  # fmt: skip
