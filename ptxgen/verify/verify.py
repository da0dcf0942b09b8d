"""Static checks of a finished function. How a program flows is in cfg.py, what differs between threads in divergence.py."""

from __future__ import annotations

import re
from collections import Counter

from ptxgen.dsl.ir import DYNAMIC_SHARED, Function, Label, Op, Remark
from ptxgen.errors import Location, VerifyError
from ptxgen.isa import special
from ptxgen.isa.effects import Effect
from ptxgen.isa.operands import Address, Immediate, LabelRef, Register, Special, Symbol
from ptxgen.isa.table import Need
from ptxgen.target import FULL_WARP, MAX_STATIC_SHARED, NEWEST_PTX, Target
from ptxgen.types import PRED
from ptxgen.verify import divergence
from ptxgen.verify.cfg import Graph, graph
from ptxgen.verify.divergence import Divergence, Level
from ptxgen.verify.products import check_products

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_$]*|[_$][A-Za-z0-9_$]+")  # PTX ISA 4.4, but for % names
_RESERVED = frozenset({"WARP_SZ"})


def verify(function: Function, target: Target) -> None:
    """Raise VerifyError, with the author's line where there is one, for the first rule that the function breaks.

    The rules: names (valid, single, ASCII), no more shared memory than a block may have, branches to labels that exist, an end
    to every path, instructions that the target has, operand types as the rows say, registers of one type that are written on
    every path before they are read, barriers that all threads of the block reach and warp instructions that all lanes reach,
    asynchronous products whose registers nobody touches (products.py)."""
    _check_names(function)
    _check_ascii(function)
    _check_shared(function, target)
    _check_instructions(function, target)
    flow = graph(function)
    _check_ends(function, flow)
    _check_written_before_read(function, flow)
    levels = divergence.analyse(function, flow)
    _check_convergence(levels)
    check_products(function, flow, levels)


# What stands around the instructions


def _check_names(function: Function) -> None:
    variables = list(function.variables)
    for name in (function.name, *variables):
        if not _IDENTIFIER.fullmatch(name) or name in _RESERVED:
            raise VerifyError(
                f"{name!r} cannot be a name in PTX",
                None,
                "use letters, digits, _ and $, a letter first; not WARP_SZ",
            )
    shared = [array.name for array in function.shared]
    labels = [line.name for line in function.body if isinstance(line, Label)]
    for kind, names in (("variable", [*variables, *(function.name for _ in set(shared) & {function.name})]), ("label", labels)):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise VerifyError(f"{function.name} has the {kind} {twice[0]} twice", None, "give each its own name")


def _check_ascii(function: Function) -> None:
    texts = {"name": function.name, "summary": function.summary, "kernel": function.kernel}
    texts |= {f"note on {p.name}": p.note for p in function.parameters}
    for what, text in texts.items():
        if not text.isascii() or "\n" in text or "\r" in text:
            raise VerifyError(f"PTX text is ASCII, the {what} is {text!r}", None, "write it as one line of ASCII")
    for line in function.body:
        if isinstance(line, Remark) and not line.text.isascii():
            raise VerifyError(f"PTX text is ASCII, a remark is {line.text!r}", line.where, "write it in ASCII")


def _check_shared(function: Function, target: Target) -> None:
    aligned: list[tuple[str, int, Location | None]] = [(p.name, p.align or 1, None) for p in function.parameters]
    aligned.append((DYNAMIC_SHARED, function.dynamic_align or 1, None))
    for what, align, where in aligned + [(a.name, a.align, a.where) for a in function.shared]:
        if align <= 0 or align & (align - 1):
            raise VerifyError(f"the alignment of {what} must be a power of two, got {align}", where, "use 4, 8, 16, ...")
    for array in function.shared:
        if array.count <= 0:
            raise VerifyError(f"shared array {array.name} has {array.count} elements", array.where, "give it at least one")
    if function.shared_bytes > MAX_STATIC_SHARED:
        arrays = ", ".join(f"{array.name} {array.bytes}" for array in function.shared)
        largest = max(function.shared, key=lambda array: array.bytes)
        raise VerifyError(
            f"{function.name} has {function.shared_bytes} bytes of shared memory ({arrays}); the limit is {MAX_STATIC_SHARED}",
            largest.where,
            "use smaller tiles, or one array for what is not alive at the same time",
        )
    if function.dynamic_shared and function.shared_bytes + function.dynamic_shared > target.max_shared:
        raise VerifyError(
            f"{function.name} has {function.shared_bytes} bytes of shared memory and asks for {function.dynamic_shared} more "
            f"at launch; a block has {target.max_shared} at most on {target}",
            None,
            "use smaller tiles, or fewer of them at once",
        )


# Instructions one by one


def _check_instructions(function: Function, target: Target) -> None:
    labels = {line.name for line in function.body if isinstance(line, Label)}
    variables = set(function.variables)
    types: dict[str, str] = {}
    for op in function.ops:
        _check_need(op, "", op.row.need(op.modifiers), target, op.row.feature)
        problems = op.row.problems(op.modifiers, op.operands)
        if problems:
            raise VerifyError(f"{op.opcode}: {'; '.join(problems)}", op.where, f"see PTX ISA {op.row.section}")
        for operand in op.operands.values():
            if isinstance(operand, Register | Immediate):
                continue
            base = operand.base if isinstance(operand, Address) else operand
            if isinstance(base, LabelRef) and base.name not in labels:
                raise VerifyError(f"{op.opcode} names the label {base.name}, which nothing places", op.where, "use k.place")
            if isinstance(base, Symbol) and base.name not in variables:
                hint = f"known: {', '.join(sorted(variables)) or 'none'}"
                raise VerifyError(f"{op.opcode} names {base.name}, which is no parameter or shared array", op.where, hint)
            if isinstance(base, Special):
                if base.name not in special.BY_NAME:
                    hint = f"known: {', '.join(special.BY_NAME)}"
                    raise VerifyError(f"there is no special register {base.name}", op.where, hint)
                _check_need(op, base.name, special.BY_NAME[base.name].need, target)
        if op.guard is not None and op.guard.type != PRED:
            raise VerifyError(f"a guard must be a predicate, got {op.guard.type}", op.where, "compare it first: x != 0")
        for register in (*op.read, *op.written):
            if types.setdefault(register.name, register.type.register) != register.type.register:
                raise VerifyError(
                    f"register {register.name} is {types[register.name]} and {register.type.register}",
                    op.where,
                    "a register has one type; make another one",
                )


def _check_need(op: Op, special_register: str, need: Need, target: Target, feature: str = "") -> None:
    sm, ptx = need
    available = target.has(sm, feature)
    if available and ptx <= NEWEST_PTX:
        return
    what = special_register or op.opcode
    if not available:
        hint = "choose by k.target.sm in the kernel, or emit for a newer target"
        if feature:
            hint = f"emit for sm_{sm}{feature}"
        raise VerifyError(f"{what} needs sm_{sm}{feature}, the target is {target}", op.where, hint)
    newest = f"{NEWEST_PTX[0]}.{NEWEST_PTX[1]}"
    raise VerifyError(
        f"{what} needs PTX {ptx[0]}.{ptx[1]}, the newest that supported drivers load is {newest}",
        op.where,
        "write it with older instructions",
    )


# Paths


def _check_ends(function: Function, flow: Graph) -> None:
    for number in flow.order:
        if flow.blocks[number].falls_off:
            last = flow.blocks[number].ops[-1].where if flow.blocks[number].ops else None
            raise VerifyError(f"{function.name} runs past its last line", last, "end every path with k.ret()")


def _check_written_before_read(function: Function, flow: Graph) -> None:
    """Registers surely written at the entry of each block: what all paths there have written."""
    writers: dict[str, Location] = {}
    for op in function.ops:
        for register in op.written:
            writers.setdefault(register.name, op.where)
    bit = {name: 1 << i for i, name in enumerate(writers)}
    everything = (1 << len(bit)) - 1
    gained = {n: sum({bit[r.name] for op in flow.blocks[n].ops if op.guard is None for r in op.written}) for n in flow.order}
    after = dict.fromkeys(flow.order, everything)
    before = dict.fromkeys(flow.order, everything)
    changed = True
    while changed:
        changed = False
        for number in flow.order:
            written = everything if number else 0
            for predecessor in flow.predecessors[number]:
                written &= after.get(predecessor, everything)
            before[number] = written
            if written | gained[number] != after[number]:
                after[number], changed = written | gained[number], True
    for number in flow.order:
        written = before[number]
        for op in flow.blocks[number].ops:
            for register in op.read:
                if register.name not in bit:
                    raise VerifyError(
                        f"{register.name} ({register.type}) is read and never written",
                        op.where,
                        f"give it a value first: k.variable(0, {register.type})",
                    )
                if not written & bit[register.name]:
                    raise VerifyError(
                        f"{register.name} ({register.type}) may be read before it is written: {writers[register.name]}\n"
                        "  does not run on every path to its reader",
                        op.where,
                        "make it with k.variable(start, type) before the branch or loop and change it there with @=",
                    )
            if op.guard is None:
                for register in op.written:
                    written |= bit[register.name]


def _check_convergence(result: Divergence) -> None:
    """Barriers that not all threads reach, and warp instructions that not all lanes reach."""
    for number in result.graph.order:
        around = result.control.get(number)
        for op in result.graph.blocks[number].ops:
            allowed = _furthest(op)
            if allowed is None:
                continue
            opcode = op.opcode
            group = _GROUPS[allowed]
            if around is not None and around[0].level > allowed:
                cause, branch = around
                raise VerifyError(
                    f"{opcode} needs all {group}, but some may not reach it together: the branch at\n  {branch.where}\n"
                    f"  depends on {cause.why}",
                    op.where,
                    _ADVICE,
                )
            guard = result.of(op.guard)
            if guard.level > allowed:
                raise VerifyError(f"{opcode} needs all {group}, but its guard depends on {guard.why}", op.where, _ADVICE)


_GROUPS = {
    Level.UNIFORM: "threads of the block",
    Level.WARPGROUP: "threads of the warpgroup",
    Level.WARP: "lanes of the warp",
}
_ADVICE = "move it out (a thread with no work brings a neutral value), or branch and loop on what all of them share"


def _furthest(op: Op) -> Level | None:
    """The highest level of control at which the instruction is right; None if at any."""
    if op.row.effect is Effect.BLOCK_BARRIER:
        return Level.UNIFORM if "b" not in op.operands else Level.WARP
    if op.row.by_warpgroup:
        return Level.WARPGROUP
    if op.row.collective:
        mask = op.operands.get("mask")
        full = mask is None or (isinstance(mask, Immediate) and mask.value in (FULL_WARP, -1))
        return Level.WARP if full else None
    return None
