"""The algebra that gives instructions their meaning in the emulator: LLVM IR for the lanes of a warp, a block at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, cast

from ptxgen.emulator.bind import place_type
from ptxgen.emulator.emitter import Emitter, scalar, vector
from ptxgen.emulator.layout import ContextWord, State
from ptxgen.emulator.products import ProductOperations
from ptxgen.emulator.program import Step
from ptxgen.emulator.registers import Frame
from ptxgen.emulator.runtime.handovers import share_waits
from ptxgen.emulator.runtime.proxies import meet
from ptxgen.emulator.values import Lanes
from ptxgen.errors import ParseError
from ptxgen.isa.algebra import Number
from ptxgen.isa.effects import Effect
from ptxgen.isa.operand_spec import OperandKind
from ptxgen.isa.operands import Address, Callee, Immediate, Register, Symbol, Vector
from ptxgen.isa.units import PERMUTES_BYTES, Unit
from ptxgen.types import F32, PRED, U32, U64


class LaneAlgebra(ProductOperations):
    """What the rows' meanings are asked with, while one kernel is compiled: the layers below, and how an instruction runs."""

    barrier_operands: tuple[Lanes, ...] = ()
    """Of the block's barrier whose meaning was asked for last."""

    barrier_votes: Lanes | None = None
    """The predicate that it counts, if it does."""
    _counted: Lanes | None = None

    def __init__(self, e: Emitter, frame: Frame) -> None:
        super().__init__(e, frame)
        self._results: dict[str, list[Lanes]] = {}

    def barrier(self, kind: str, *operands: Number) -> None:
        self.barrier_operands = tuple(self.like(o, U32) for o in operands)
        if self.sanitize and kind in ("warp", "grid"):
            word, pointer = self.warp_word(State.SYNC_EPOCH if kind == "warp" else State.WAITED)
            after = word + 1 if kind == "warp" else word | Lanes(self, U32, self.mask, True)  # flow.py makes the lanes meet
            self.e.do(f"store {after.llvm_type} {after.name}, ptr {pointer}, align 4")
        if self.frame.checks_proxies and kind == "warp":
            self.e.call_runtime(meet, "%c", "%s")
        if self.frame.checks_waits and kind == "warp":
            self.e.call_runtime(share_waits, "%c", "%s", self.mask)

    def barrier_count(self, p: Number, *operands: Number) -> Lanes:
        if self._counted is not None:
            return self._counted
        self.barrier("block", *operands)
        self.barrier_votes = self.like(p, PRED)
        return self.const(0, U32)  # it is known in the block that follows (`receive`)

    def receive(self, step: Step) -> None:
        """Write what a barrier has counted, for the lanes of the block that waited there."""
        voters, place = self.warp_word(State.VOTERS)
        waited = self.e.emit(f"and i32 {self.block_mask}, {voters.name}")
        self.e.do(f"store i32 {self.e.emit(f'xor i32 {voters.name}, {waited}')}, ptr {place}, align 4")
        pointer = self.e.emit(f"getelementptr i8, ptr %s, i64 {State.COUNTED}")
        self._counted = Lanes(self, U32, self.e.emit(f"load <32 x i32>, ptr {pointer}, align 64"), False)
        self.guard_value = Lanes(self, PRED, self.e.emit(f"bitcast i32 {waited} to <32 x i1>"), False)
        self.guarded, self.mask, self.line = True, waited, step.line
        given = [self.const(0, place_type(step.row, step.modifiers, place, step.operands) or U32) for place in step.row.sources]
        self._assign(step, step.row.destinations[0].name, step.row.meaning(self, *given, **step.modifiers))
        self.guarded, self.mask, self._counted = False, self.block_mask, None

    def trap(self) -> None:
        return None

    def guard_bits(self, step: Step) -> str:
        """The lanes of the block whose guard holds."""
        assert step.guard is not None
        value = self.register(step.guard.register)
        if step.guard.negated:
            value = ~value
        self.guard_value = value
        bits = self.e.emit(f"bitcast <32 x i1> {self.spread(value)} to i32")
        return self.e.emit(f"and i32 {bits}, {self.block_mask}")

    def execute(self, step: Step) -> None:
        """Emit one instruction: read its sources, call its row's meaning, write its destinations."""
        self.line = step.line
        self.ordering = step.row.ordering(step.modifiers)
        self.promises = step.row.effect is Effect.READ_ONLY_LOAD
        self.late = id(step) in self.frame.late
        self.guarded = step.guard is not None
        self.mask = self.guard_bits(step) if self.guarded else self.block_mask
        if step.row.effect is Effect.CALL:  # all others are inlined
            self.print(step)
        try:
            result = self._meant(step, self.sources(step))
        except (TypeError, ValueError, KeyError) as e:
            raise ParseError(f"{step.row.opcode(step.modifiers)} is not emulated with these operands: {e}", step.line) from e
        if self.ordering.fence:
            self.fence()
        places = step.row.results
        results = result if len(places) > 1 else (result,) * len(places)
        for place, value in zip(places, results, strict=True):
            if place.name in step.operands:
                self._assign(step, place.name, value)
        self.guarded, self.mask = False, self.block_mask

    def print(self, step: Step) -> None:
        """Call the function that prints, once for all lanes of the mask: with it, the addresses of their formats and values,
        and a place for what vprintf returns to each."""
        callee = step.operands["function"]
        assert isinstance(callee, Callee)
        e, slots = self.e, [self.e.alloca("<32 x i64>") for _ in callee.arguments]
        for name, slot in zip(callee.arguments, slots, strict=True):
            (address,) = self.load("param", Address(Symbol(name)), U64, 1)
            e.do(f"store <32 x i64> {self.spread(address)}, ptr {slot}, align 64")
        status = e.alloca("<32 x i32>")
        function = e.emit(f"inttoptr i64 {self.slot(ContextWord.PRINT).name} to ptr")
        e.do(f"call void {function}(i32 {self.mask}, ptr {slots[0]}, ptr {slots[1]}, ptr {status})")
        for name in callee.results:
            returned = Lanes(self, U32, e.emit(f"load <32 x i32>, ptr {status}, align 64"), False)
            self.store("param", Address(Symbol(name)), (returned,), U32)

    def _meant(self, step: Step, sources: list[object]) -> Any:
        """What the row makes of the sources. A matrix product is a call: it is hundreds of LLVM instructions, and a kernel has
        as many. So are dot products, permutations of bytes and what is rounded to halves, which some kernels are full of: LLVM
        takes up to ten times as long where it looks through all that each number comes from, and the code is no faster. A
        permutation whose order is known is a few shifts instead, unless the kernel is sanitised: it runs once or twice, and
        compiling it takes longer than that."""
        meaning, opcode = partial(step.row.meaning, self, **step.modifiers), step.row.opcode(step.modifiers)
        if _is_product(step):
            return self._called(opcode, meaning, cast("list[tuple[Lanes, ...]]", sources))
        lanes = [source for source in sources if isinstance(source, Lanes)]
        if self._is_taken_apart(step, lanes) and not all(source.uniform for source in lanes):
            name = f"{opcode}.{lanes[-1].type.name}"  # a sum's type is that of what is added to
            return self._called(name, lambda *each: (meaning(*(one for (one,) in each)),), [(one,) for one in lanes])[0]
        return meaning(*sources)

    def _is_taken_apart(self, step: Step, sources: list[Lanes]) -> bool:
        """Whether it takes its sources apart into bytes or halves."""
        permutes = step.row.name in PERMUTES_BYTES and (self.sanitize or sources[-1].constant is None)
        return permutes or step.row.unit in (Unit.DOT, Unit.HALF)

    def _called(
        self, opcode: str, meaning: Callable[..., Sequence[Lanes]], sources: list[tuple[Lanes, ...]]
    ) -> tuple[Lanes, ...]:
        """A call of a function that does what `meaning` says."""
        given = [one for source in sources for one in source]
        name = re.sub(r"\W", "_", opcode)
        if name not in self._results:
            self._results[name] = self._define(name, meaning, sources)
        results = self._results[name]
        arguments = ", ".join(f"{vector(scalar(one.type))} {self.spread(one)}" for one in given)
        kind = _structure(results)
        called = self.e.emit(f"call {kind} @{name}({arguments})")
        return tuple(
            Lanes(self, one.type, self.e.emit(f"extractvalue {kind} {called}, {i}"), False, loose=one.loose)
            for i, one in enumerate(results)
        )

    def _define(self, name: str, meaning: Callable[..., Sequence[Lanes]], sources: list[tuple[Lanes, ...]]) -> list[Lanes]:
        """Write the function of a meaning; returns its results. Which NaN an f32 holds they do not tell: it is loose."""
        body, splats, mask = self.e.body, self.splats, self.mask
        self.e.body, self.splats, self.mask = [], {}, "-1"
        numbers = count()
        parameters = [
            tuple(Lanes(self, one.type, f"%a{next(numbers)}", uniform=False, loose=one.type == F32) for one in source)
            for source in sources
        ]
        results = list(meaning(*parameters))
        kind, value = _structure(results), "poison"
        for i, one in enumerate(results):
            value = self.e.emit(f"insertvalue {kind} {value}, {vector(scalar(one.type))} {self.spread(one)}, {i}")
        declared = ", ".join(f"{one.llvm_type} {one.name}" for source in parameters for one in source)
        self.e.functions[name] = "\n".join(
            [f"define internal {kind} @{name}({declared}) noinline {{", *self.e.body, f"  ret {kind} {value}", "}"]
        )
        self.e.body, self.splats, self.mask = body, splats, mask
        return results

    def _assign(self, step: Step, name: str, value: Lanes | tuple[Lanes, ...]) -> None:
        operand = step.operands[name]
        if isinstance(operand, Vector):
            values = value if isinstance(value, tuple) else (value,)
            for register, one in zip(operand.elements, values, strict=True):
                if isinstance(register, Register):
                    self.write(register, one)
        elif isinstance(operand, Register):
            if isinstance(value, tuple):
                raise ParseError(f"{step.row.name} gives {len(value)} values to one register", self.line)
            self.write(operand, value)

    def sources(self, step: Step) -> list[object]:
        """The sources as a meaning takes them; an optional one that the text leaves out ends the list."""
        sources: list[object] = []
        for place in step.row.sources:
            operand = step.operands.get(place.name)
            if operand is None or place.spec.kind in (OperandKind.LABEL, OperandKind.SYMBOL):
                continue
            type = place_type(step.row, step.modifiers, place, step.operands) or U32
            if place.spec.kind is OperandKind.CONSTANT:
                sources.append(int(operand.value) if isinstance(operand, Immediate) else operand)
            elif isinstance(operand, Address):
                sources.append(operand)
            elif isinstance(operand, Vector):
                sources.append(tuple(self.const(0, type) if x is None else self.read(x, type) for x in operand.elements))
            else:
                sources.append(self.read(operand, type))
        return sources


def _is_product(step: Step) -> bool:
    """Whether it is a matrix product of registers."""
    return step.row.unit is Unit.TENSOR and step.row.effect is Effect.NONE


def _structure(values: list[Lanes]) -> str:
    """The LLVM type of several registers as one value."""
    return f"{{ {', '.join(vector(scalar(one.type)) for one in values)} }}"
